"""Slurm's host lists, from where this package's modules have always imported them."""

from __future__ import annotations

from bftrainer.hostlist import MAX_NAMES, ParseError, expand

__all__ = ["MAX_NAMES", "ParseError", "expand"]
