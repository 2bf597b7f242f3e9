"""Slurm itself on the lab's hosts. Start reading in ``slurm_lab.py``."""
