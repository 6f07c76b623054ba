"""The batch system: its state, its queue, how processes start, and one on this machine."""
