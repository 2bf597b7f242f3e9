"""What runs on nodes: agent, probe, rank processes, guardian, wire. Standard library only, Python 3.8 syntax, nothing of ours imported."""
