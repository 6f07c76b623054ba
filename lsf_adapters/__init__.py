"""LSF as a batch system of bftrainer, the counterpart of ``slurm_plugins``.

``adapter.create`` is the entry point ``bftrainer.batch_systems: lsf``. Two dialects are supported:
IBM Spectrum LSF 10.1 and volclava 2, an open relative of it (``commands.Dialect``).
"""
