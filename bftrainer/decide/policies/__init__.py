"""Policies: rules that turn a problem into an allocation, one file each.

Found by entry point (group ``bftrainer.policies``); the daemon and the simulator load
the one the administrator names.
"""
