"""A user's own daemon (``bftrainer up``): its limits on this cluster, its policy, its start."""
