"""What ``mutants.py`` is made of."""
