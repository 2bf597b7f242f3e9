"""What runs on nodes: agent, probe, ranks, guardian, wire. Standard library, Python 3.8 syntax, nothing of ours imported."""
