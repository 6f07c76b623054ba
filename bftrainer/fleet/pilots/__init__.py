"""Pilots, from the request to the end of their job, and the agents in them."""
