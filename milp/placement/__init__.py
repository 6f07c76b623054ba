"""From sizes to nodes: who keeps, gives up and receives which."""
