"""Queue models: what the pending jobs of a look ask for, for ``decide``. Pure."""
