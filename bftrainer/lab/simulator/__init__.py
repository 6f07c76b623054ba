"""The simulator: replays traces of idle nodes with workloads of trainers."""
