"""``bftrainer demo``: real trainers on the idle nodes of a small cluster, watched and summed up."""
