"""Machines, settings and figures of ``bench_gaps``."""
