"""The worker of runtime ``command``: runs one user's program on one node."""
