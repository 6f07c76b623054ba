"""What a trainer's throughput is at every size: measured, fitted, explored. Pure."""
