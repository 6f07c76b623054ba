"""LSF as a batch system of bftrainer; its adapter is still to be written.

Slurm is supported by ``slurm_plugins``. The package is part of the distribution so
that import names never change under an installed site.
"""
