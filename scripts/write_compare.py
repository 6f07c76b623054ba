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
    """Return what follows ``HERE``: when and where it was measured, the arenas, and the tables."""
    known, arenas = kept["recorded"], kept["arenas"]
    seeds = max(row["figures"]["jct_mean_s"]["count"] for row in arenas[0]["rows"])
    said = f"Seeds: {seeds}. Measured on {known['date']} with {known['commit']}"
    said += f" (machine: {known['machine']})."
    points = (f"* `{arena['name']}`: {arena['about']}" for arena in arenas)
    lines = [*textwrap.wrap(said, 118), ""]
    lines += [line for one in points for line in textwrap.wrap(one, 118, subsequent_indent="  ")]
    pairs = [arenas[k : k + 2] for k in range(0, len(arenas), 2)]
    tables = (f"```\n{_table(pair).rstrip()}\n```\n" for pair in pairs)
    return "\n".join([*lines, "", *tables])


def _table(arenas: Sequence[Mapping[str, Any]]) -> str:
    heads, shown = ["POLICY"], [[row["policy"] for row in arenas[0]["rows"]]]
    for arena in arenas:
        rows = [dict(zip(HEADERS, cells(_row(row)), strict=True)) for row in arena["rows"]]
        for header, head in SHOWN.items():
            column = [row[header].replace(" of ", "/") for row in rows]
            if len(set(column)) > 1:
                heads.append(f">{arena['name']}: {head}")
                shown.append([cell.partition(", ")[2] or cell for cell in column])
    alike = dict[tuple[str, ...], list[str]]()  # policies that are the same in all figures
    for name, *figures in zip(*shown, strict=True):
        alike.setdefault(tuple(figures), []).append(name)
    return columns(heads, [(",".join(names), *figures) for figures, names in alike.items()])


def _row(plain: Mapping[str, Any]) -> Row:
    every = {one.name: None for one in fields(Score)}  # what an older file lacks
    figures = {name: one and Interval(**one) for name, one in (every | plain["figures"]).items()}
    jct, work = plain["jct_against"], plain.get("work_against")
    return Row(
        policy=plain["policy"],
        jct_against=jct and Interval(**jct),
        work_against=work and Interval(**work),
        figures=figures,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
