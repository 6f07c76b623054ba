"""Solvers that run outside this process: the runner, its child, and one way to use them."""
