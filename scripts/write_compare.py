"""Write docs/policies/compare.md's tables: what ``bftrainer compare --json`` measured.

Takes its files, one or several with different arenas; keeps them in docs/policies/compare.json
and puts tables of two arenas each at the end of the page.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from _bench.targets import ROOT, recorded

from bftrainer.lab.compare import HEADERS, Interval, Row, Score, cells
from bftrainer.model.columns import columns

PAGE, KEPT = ROOT / "docs/policies/compare.md", ROOT / "docs/policies/compare.json"
HERE = "<!-- written by scripts/write_compare.py -->\n"
# Columns of the page, where policies differ in them; the kept file has all.
SHOWN = {
    ">WORK AGAINST": "work",
    ">U": "U",
    ">JCT AGAINST": "JCT",
    ">ENDED": "ended",
    ">JOB WAIT": "job wait",
}


def main(files: Sequence[str]) -> int:
    """Keep the results, write the tables."""
    arenas = [arena for file in files for arena in json.loads(Path(file).read_text())["arenas"]]
    for arena in arenas:
        for row in arena["rows"]:
            row.pop("scores", None)
    machine = f"{platform.machine()}, {os.cpu_count()} processors"
    text = json.dumps(
        {"recorded": {**recorded(), "machine": machine}, "arenas": arenas}, separators=(",", ":")
    )
    KEPT.write_text(text + "\n", encoding="utf-8")
    head = PAGE.read_text(encoding="utf-8").partition(HERE)[0]
    PAGE.write_text(f"{head}{HERE}\n{tables_of(json.loads(text))}", encoding="utf-8")
    return 0


def tables_of(kept: Mapping[str, Any]) -> str:
    """Return what follows ``HERE``: when and where it was measured, the arenas, and the tables."""
    recorded, arenas = kept["recorded"], kept["arenas"]
    seeds = max(row["figures"]["jct_mean_s"]["count"] for row in arenas[0]["rows"])
    measured_on = f"Seeds: {seeds}. Measured on {recorded['date']} with {recorded['commit']}"
    measured_on += f" (machine: {recorded['machine']})."
    points = (f"* `{arena['name']}`: {arena['about']}" for arena in arenas)
    lines = [*textwrap.wrap(measured_on, 118), ""]
    lines += [
        line for point in points for line in textwrap.wrap(point, 118, subsequent_indent="  ")
    ]
    pairs = [arenas[k : k + 2] for k in range(0, len(arenas), 2)]
    tables = (f"```\n{_table(pair).rstrip()}\n```\n" for pair in pairs)
    return "\n".join([*lines, "", *tables])


def _table(arenas: Sequence[Mapping[str, Any]]) -> str:
    heads, table = ["POLICY"], [[row["policy"] for row in arenas[0]["rows"]]]
    for arena in arenas:
        rows = [dict(zip(HEADERS, cells(_row(row)), strict=True)) for row in arena["rows"]]
        for header, head in SHOWN.items():
            column = [row[header].replace(" of ", "/") for row in rows]
            if len(set(column)) > 1:
                heads.append(f">{arena['name']}: {head}")
                table.append([cell.partition(", ")[2] or cell for cell in column])
    alike = dict[tuple[str, ...], list[str]]()  # policies that are the same in all figures
    for name, *figures in zip(*table, strict=True):
        alike.setdefault(tuple(figures), []).append(name)
    return columns(heads, [(",".join(names), *figures) for figures, names in alike.items()])


def _row(plain: Mapping[str, Any]) -> Row:
    every = {part.name: None for part in fields(Score)}  # what an older file lacks
    stored = every | plain["figures"]
    figures = {name: figure and Interval(**figure) for name, figure in stored.items()}
    jct, work = plain["jct_against"], plain.get("work_against")
    return Row(
        policy=plain["policy"],
        jct_against=jct and Interval(**jct),
        work_against=work and Interval(**work),
        figures=figures,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
