"""Studies: hyper-parameter search in which every trial is a trainer (docs/howto/studies.md)."""
