"""Predicts what a site's own jobs would notice of bftrainer, on a simulation of that site.

``replica`` makes the simulated site of the site's files, ``experiment`` plays parts of its log
without and beside bftrainer, ``findings`` adds up, ``document`` tells it. ``bftrainer whatif
--harm`` calls them; see docs/howto/choose-settings.md.
"""
