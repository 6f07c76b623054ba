"""A simulated Slurm with ordinary jobs, and the sidecar beside it."""
