"""Hostfile text or Slurm variables -> Host records. Nothing here touches the network."""
