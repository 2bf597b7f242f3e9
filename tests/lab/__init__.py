"""The lab: hosts with a real sshd in namespaces of one machine. Start reading in ``lab.py``."""
