"""What ``python -m tests.support.mutants`` is made of."""
