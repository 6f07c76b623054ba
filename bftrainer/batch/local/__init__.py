"""A batch system whose nodes are process groups on this machine: demo, tests, first steps."""
