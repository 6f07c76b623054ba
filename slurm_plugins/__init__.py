"""Slurm as a batch system: adapter, site plug-ins, and a test cluster on one host."""
