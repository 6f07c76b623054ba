"""Batch system -> ``Snapshot``: the state of the cluster in our own terms."""
