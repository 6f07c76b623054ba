"""Trainer runtimes, which start workers: plug-ins of entry point group ``bftrainer.runtimes``."""
