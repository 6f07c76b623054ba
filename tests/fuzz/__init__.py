"""Hostile text against every parser and decoder of what others write.

``doors/`` names them, one file per boundary; ``corpus/<door>/`` keeps inputs that once did
harm. ``make test`` tries a few hundred cases a door; ``python -m tests.fuzz --cases N`` as many
as somebody has time for.
"""
