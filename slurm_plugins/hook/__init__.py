"""Slurm tells us: a line in a file for every job that is submitted or ends.

``scripts`` holds what runs inside the controller, ``lines`` reads what it wrote,
``watch`` notices it. Without any of it the daemon polls.
"""
