"""``python -m launcher.train``: one rank, as ``launcher.train.main`` says."""

import sys

from launcher.train.main import main

if __name__ == "__main__":
    sys.exit(main())
