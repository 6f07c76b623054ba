"""The batch system: its state, its queue, the start of processes, and one on this machine."""
