"""Plan → pilots, agents, workers: what is requested and how generations form."""
