"""How an agent starts a worker of runtime ``mpi``."""
