"""Run the reproductions of all papers in full, and count their verdicts in docs/results.md.

``--run`` replays everything first (half an hour on one core; the original data is read from
$BFTRAINER_DATA) and keeps what was found, with date, commit and processor time, in the papers'
``full.json``. Without it only the table is written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from _bench.targets import ROOT

from bftrainer.batch import process
from bftrainer.cli.reproduce import DATA_VARIABLE
from bftrainer.lab.papers.paper import load, names, reproduce
from bftrainer.lab.papers.verdicts import FullRun, NumberVerdict, counts
from bftrainer.model.columns import columns

START, END = "<!-- verdicts -->\n", "<!-- end -->\n"


def run(name: str, processes: int) -> None:
    """Reproduce a paper in full and keep what was found."""
    paper, before_s = load(name), _used_s()
    data = os.environ.get(DATA_VARIABLE)
    scenario = paper.choose_scenario(None, Path(data) if data else None, paper.full)
    if not scenario.is_papers:
        raise SystemExit(f"{name}: ${DATA_VARIABLE} has not the paper's data")
    commit = process.run(["git", "rev-parse", "--short", "HEAD"], timeout_s=10.0, cwd=ROOT)
    made = reproduce(paper, scenario, paper.full, paper.results, processes=processes)
    recorded = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit.stdout.strip(),
        "command": f"bftrainer reproduce {name}",
        "processor_min": round((_used_s() - before_s) / 60.0, 1),
    }
    text = json.dumps(asdict(FullRun.of(made, recorded)), indent=1, ensure_ascii=False) + "\n"
    Path(str(files(paper.package)), "full.json").write_text(text, encoding="utf-8")


def _used_s() -> float:
    return sum(os.times()[:4])


def table() -> str:
    """Return the papers' counts of verdicts, the parameters of their fits, and what a run takes."""
    rows = []
    for name in names():
        paper = load(name)
        full = FullRun.read(paper.package)
        if full is not None:
            found, of = counts(verdict for *_, verdict in full.judged(paper)), full.recorded
            fitted = sum(len(fit["parameters"]) for fit in paper.fits.values())
            when = (of["date"], of["commit"], f"{of['processor_min']:g} min")
            rows.append((name, *map(str, found.values()), str(fitted), *when))
    headers = ("PAPER", *(f">{one.upper()}" for one in NumberVerdict))
    shown = columns((*headers, ">PARAMETERS", "RUN", "COMMIT", ">CPU"), rows)
    return f"```\n{shown}\n```\n"


def block() -> str:
    """Return the table between the comments by which it is found again."""
    return f"{START}{table()}{END}"


def main() -> int:
    """Write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", nargs="*", metavar="PAPER", help="replay these, or all, in full")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    for name in names() if arguments.run == [] else arguments.run or ():
        run(name, arguments.processes)
    page = ROOT / "docs" / "results.md"
    before, start, rest = page.read_text(encoding="utf-8").partition(START)
    if not start:
        raise SystemExit(f"{page} has no such table: run scripts/write_results.py docs/results")
    page.write_text(f"{before}{block()}{rest.partition(END)[2]}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
