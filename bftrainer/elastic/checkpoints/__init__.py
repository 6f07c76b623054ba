"""Checkpoints as files: their format and directory, what they are of, who may go on from them.

Not what is in them, nor when they are written (``state``).
"""
