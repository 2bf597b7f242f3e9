"""From hosts and reports to a plan, from a plan to running ranks, and to their end. Runs on the head."""
