"""What every layer stands on: errors, the recipe's schema, variables, events. Standard library only at import time."""
