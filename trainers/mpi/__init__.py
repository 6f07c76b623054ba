"""The start of a worker of runtime ``mpi`` by an agent."""
