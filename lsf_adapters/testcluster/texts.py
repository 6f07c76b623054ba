"""Pieces of text that several commands print."""

from __future__ import annotations

_INDICES = "           r15s   r1m  r15m   ut      pg    io   ls    it    tmp    swp    mem"
_NONE = "   -     -     -     -       -     -    -     -     -      -      -  "

THRESHOLDS = f"{_INDICES}\n loadSched{_NONE}\n loadStop {_NONE}\n"
"""The load thresholds of a queue, host or job that has none."""
