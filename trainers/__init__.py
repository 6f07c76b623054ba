"""Programs on a node: the agent, the runtimes that start workers, example scripts."""
