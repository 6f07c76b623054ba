"""What ``frozen.py`` is made of."""
