"""Write docs/policies/compare.md's tables: what ``bftrainer compare --json`` measured.

Takes its files, one or several with different arenas; keeps them in docs/policies/compare.json
and puts a table for each arena at the end of the page.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _bench.targets import ROOT, recorded

from bftrainer.lab.compare.table import HEADERS, Interval, Row, cells

PAGE, KEPT = ROOT / "docs/policies/compare.md", ROOT / "docs/policies/compare.json"
HERE = "<!-- written by scripts/write_compare.py -->\n"


def main(files: Sequence[str]) -> int:
    """Keep the results, write the tables."""
    arenas = [one for file in files for one in json.loads(Path(file).read_text())["arenas"]]
    for arena in arenas:
        for row in arena["rows"]:
            row.pop("scores", None)
    machine = f"{platform.machine()}, {os.cpu_count()} processors"
    kept = json.dumps(
        {"recorded": {**recorded(), "machine": machine}, "arenas": arenas}, separators=(",", ":")
    )
    KEPT.write_text(kept + "\n", encoding="utf-8")
    head = PAGE.read_text(encoding="utf-8").partition(HERE)[0]
    PAGE.write_text(f"{head}{HERE}\n{tables_of(json.loads(kept))}", encoding="utf-8")
    return 0


def tables_of(kept: Mapping[str, Any]) -> str:
    """Return what follows ``HERE``: when and where it was measured, and a table per arena."""
    known, arenas = kept["recorded"], kept["arenas"]
    seeds = max(row["figures"]["jct_mean_s"]["count"] for row in arenas[0]["rows"])
    said = f"Seeds: {seeds}. Measured on {known['date']} with {known['commit']}"
    lines = [f"{said} (machine: {known['machine']}).", ""]
    return "\n".join(lines + [line for arena in arenas for line in _section(arena)])


def _section(arena: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"## {arena['name']}", "", arena["about"], "")
    rows = [cells(_row(row)) for row in arena["rows"]]
    shown = [k for k in range(len(HEADERS)) if any(row[k] != "-" for row in rows)]
    yield f"| {' | '.join(HEADERS[k].removeprefix('>') for k in shown)} |"
    yield f"|---{'|---:' * (len(shown) - 1)}|"
    yield from (f"| {' | '.join(row[k] for k in shown)} |" for row in rows)
    yield ""


def _row(plain: Mapping[str, Any]) -> Row:
    fields = {"job_wait_s": None, "job_wait_added": None, **plain["figures"]}
    figures = {name: one and Interval(**one) for name, one in fields.items()}
    against = plain["jct_against"]
    return Row(policy=plain["policy"], jct_against=against and Interval(**against), figures=figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
