"""Queue models: order and requests of a snapshot's pending jobs, for ``decide``. Pure."""
