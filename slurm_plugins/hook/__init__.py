"""Notifications from Slurm: a line in a file for every job that is submitted or ends.

``scripts`` holds what runs inside the controller, ``lines`` parses what it wrote, ``watch`` notices
it. Without the hook the daemon only polls.
"""
