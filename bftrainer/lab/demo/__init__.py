"""``bftrainer demo``: real trainers on the idle nodes of a small cluster."""
