"""LSF as a batch system of bftrainer: what ``slurm_plugins`` is for Slurm.

``adapter.create`` is the entry point ``bftrainer.batch_systems: lsf``. Two dialects are spoken:
IBM Spectrum LSF 10.1 and volclava 2, an open relative of it (``dialect``).
"""
