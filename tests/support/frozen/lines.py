"""Frozen cases on disk: one JSON object a line, gzipped; the first line tells of the others.

Read them with ``zcat FILE | jq``. The same cases always make the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Plain = dict[str, Any]  # what JSON calls an object


def read(path: Path, every: int = 1) -> tuple[Plain, list[Plain]]:
    """Return the first line and each ``every``-th case."""
    head, *cases = gzip.decompress(path.read_bytes()).splitlines()
    return json.loads(head), [json.loads(case) for case in cases[::every]]


def write(path: Path, head: Plain, cases: Iterable[Plain]) -> None:
    """Write the first line and the cases."""
    lines = [json.dumps(line, separators=(",", ":"), allow_nan=False) for line in (head, *cases)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
