"""Write docs/policies/compare.md's tables: what ``bftrainer compare --json`` measured.

Takes its files, one or several with different arenas; keeps them in docs/policies/compare.json
and puts a table for each arena at the end of the page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from _bench.targets import ROOT

from bftrainer.compare.table import HEADERS, Interval, Row, cells

PAGE, KEPT = ROOT / "docs/policies/compare.md", ROOT / "docs/policies/compare.json"
HERE = "<!-- written by scripts/write_compare.py -->\n"


def main(files: Sequence[str]) -> int:
    """Keep the results, write the tables."""
    arenas = [one for file in files for one in json.loads(Path(file).read_text())["arenas"]]
    for arena in arenas:
        for row in arena["rows"]:
            row.pop("scores", None)
    KEPT.write_text(json.dumps({"arenas": arenas}, separators=(",", ":")) + "\n", encoding="utf-8")
    head = PAGE.read_text(encoding="utf-8").partition(HERE)[0]
    tables = "\n".join(line for arena in arenas for line in _section(arena))
    PAGE.write_text(f"{head}{HERE}\n{tables}", encoding="utf-8")
    return 0


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
