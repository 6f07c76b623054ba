"""Notifications from Slurm: a line in a file for every job that is submitted or ends.

``scripts`` holds the scripts that run inside the controller, ``lines`` parses the lines they write,
``watch`` notices new lines, ``relay`` carries them to a daemon on another host, ``source`` opens
one or the other. Without the hook the daemon only polls.
"""
