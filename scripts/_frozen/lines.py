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


def read(path: Path) -> tuple[Plain, list[Plain]]:
    """Return the first line and the cases."""
    head, *cases = (json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines())
    return head, cases


def write(path: Path, head: Plain, cases: Iterable[Plain]) -> None:
    """Write the first line and the cases."""
    lines = [json.dumps(line, separators=(",", ":"), allow_nan=False) for line in (head, *cases)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
