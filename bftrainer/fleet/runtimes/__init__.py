"""Trainer runtimes, which start workers: plug-ins of the group ``bftrainer.runtimes``."""
