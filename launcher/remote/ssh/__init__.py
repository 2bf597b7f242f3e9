"""A host over SSH through Fabric and Paramiko: the only modules that import them.

Fabric opens the connection over a socket of ours; the agent then speaks over a raw channel of its transport. Fabric by itself
accepts any host key, reads no known_hosts and takes keys in another order than ``ssh``: that is decided here.
"""
