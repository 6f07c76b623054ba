"""The generations of one trainer, as state machines without I/O."""
