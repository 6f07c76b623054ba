"""Traces of idle nodes: read from logs and archives, or generated from a seed.

``read_trace`` and ``generate`` return ``Fragments``, used by the simulator and ``bftrainer trace``.
The formats are described in ``docs/reference/traces.md``.
"""

from __future__ import annotations

from pathlib import Path

from bftrainer.batch.traces.fragments import Fragments, PoolChanges, make_fragments
from bftrainer.batch.traces.read import FORMATS, read_trace, write_trace
from bftrainer.batch.traces.text import ReadOptions, TraceError

__all__ = [
    "FORMATS",
    "SAMPLE",
    "Fragments",
    "PoolChanges",
    "ReadOptions",
    "TraceError",
    "make_fragments",
    "read_trace",
    "write_trace",
]

SAMPLE = Path(__file__).parent / "data" / "sample.npz"
"""256 nodes for two days, made by ``bftrainer trace generate --nodes 256 --hours 48 --seed 2``."""
