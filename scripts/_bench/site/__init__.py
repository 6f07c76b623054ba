"""A whole Slurm machine, event by event, with the project's decision in the loop."""
