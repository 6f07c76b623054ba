"""How trainers of each kind are run on nodes: plug-ins named ``bftrainer.runtimes``."""
