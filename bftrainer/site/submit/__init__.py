"""Pilots that run as the submitting user: the privileged helper, and the daemon's side of it."""
