"""Several classes of nodes: which trainer gets how many of which."""
