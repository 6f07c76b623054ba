"""Replay without a cluster: traces of idle nodes and workloads of trainers in, results out."""
