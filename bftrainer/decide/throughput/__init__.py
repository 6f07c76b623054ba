"""A trainer's throughput by size: measured, fitted, explored. Pure."""
