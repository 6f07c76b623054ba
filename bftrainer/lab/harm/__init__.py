"""Predicts what an administrator's own jobs would notice of bftrainer, on a simulation of his site.

``replica`` makes the simulated site of his files, ``experiment`` plays parts of his log on it
without and beside bftrainer, ``findings`` adds up, ``document`` tells it. ``bftrainer whatif
--harm`` calls them; see docs/howto/choose-settings.md.
"""
