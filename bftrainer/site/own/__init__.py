"""A user's own daemon (``bftrainer up``): what it may do here, its policy, its start."""
