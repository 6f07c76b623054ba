"""batch system → Snapshot: what the cluster looks like now, in our words."""
