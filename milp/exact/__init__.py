"""One pool of nodes: the best sizes, exactly."""
