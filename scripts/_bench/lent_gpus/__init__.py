"""Idle GPUs of a simulated site, lent as whole nodes or one by one: what its jobs notice."""
