"""``bftrainer try``: a user's own script on nodes that come and go, on one machine."""
