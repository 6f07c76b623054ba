"""Pilots that run as the submitting user: the privileged helper, and how the daemon asks it."""
