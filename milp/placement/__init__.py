"""From sizes to nodes: which nodes each trainer keeps, gives up and receives."""
