"""Hostile users of a site that trains: what they do, and what of it others notice."""
