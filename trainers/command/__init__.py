"""The worker of runtime ``command``: keeps one user's program on one node."""
