"""One file per boundary; each has a tuple ``DOORS``."""
