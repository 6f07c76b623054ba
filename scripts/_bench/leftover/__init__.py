"""Idle GPUs of a simulated site that runs a log's jobs: on idle nodes, or beside other jobs."""
