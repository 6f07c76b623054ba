"""Run the reproductions of all papers in full; count verdicts in results.md and reproduce.md.

``--run`` replays everything first (half an hour on one core; the original data is read from
$BFTRAINER_DATA) and keeps what was found, with date, commit and processor time, in the papers'
``full.json``. With ``--only`` the named results of one paper are replayed, and the others kept;
the record names both runs. Without ``--run`` verdicts are given anew to what is kept: the counts in
docs/results.md, and in docs/design/reproduce.md those of each result and the rule of tolerances.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path

from _bench.targets import ROOT

from bftrainer.batch import process
from bftrainer.lab.papers import tolerances
from bftrainer.lab.papers.paper import Paper, load, names, reproduce
from bftrainer.lab.papers.verdicts import FullRun, NumberVerdict, counts
from bftrainer.lab.verbs.reproduce import DATA_VARIABLE
from bftrainer.model.columns import columns

RESULTS, DESIGN = ROOT / "docs" / "results.md", ROOT / "docs" / "design" / "reproduce.md"
END = "<!-- end -->\n"
SUMMARY, RULE = "verdicts", "rule"  # marks; those of a paper's results have its name, too
VERDICTS = tuple(f">{one.upper()}" for one in NumberVerdict)


def run(name: str, processes: int, only: Sequence[str] = ()) -> None:
    """Reproduce a paper in full, or some of its results, and keep what was found."""
    paper, before_s = load(name), _used_s()
    data = os.environ.get(DATA_VARIABLE)
    scenario = paper.choose_scenario(None, Path(data) if data else None, paper.full)
    if not scenario.is_papers:
        raise SystemExit(f"{name}: ${DATA_VARIABLE} has not the paper's data")
    commit = process.run(["git", "rev-parse", "--short", "HEAD"], timeout_s=10.0, cwd=ROOT)
    results = paper.choose(only)
    run = reproduce(paper, scenario, paper.full, results, processes=processes)
    recorded = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": commit.stdout.strip(),
        "command": " ".join(
            [f"bftrainer reproduce {name}", *(f"--only {result}" for result in only)]
        ),
        "processor_min": round((_used_s() - before_s) / 60.0, 1),
    }
    full = FullRun.of(run, recorded)
    if only and (full_run := FullRun.read(paper.package)):
        full = full_run.with_later(full, paper)
    text = json.dumps(asdict(full), indent=1, ensure_ascii=False) + "\n"
    Path(str(files(paper.package)), "full.json").write_text(text, encoding="utf-8")


def _used_s() -> float:
    return sum(os.times()[:4])


def _full_runs() -> dict[str, tuple[Paper, FullRun]]:
    papers = {name: load(name) for name in names()}
    full_runs = {name: FullRun.read(paper.package) for name, paper in papers.items()}
    return {name: (papers[name], full) for name, full in full_runs.items() if full is not None}


def summary() -> str:
    """Return the papers' counts of verdicts, the parameters of their fits, and what a run takes."""
    rows = []
    for name, (paper, full) in _full_runs().items():
        number = counts(verdict for *_, verdict in full.judged(paper)).values()
        fitted = sum(len(fit["parameters"]) for fit in paper.fits.values())
        runs = [full.recorded, *full.recorded.get("later", ())]
        dates = dict.fromkeys(run["date"] for run in runs)
        commits = dict.fromkeys(run["commit"] for run in runs)
        cpu_min = sum(run["processor_min"] for run in runs)
        when = (" and ".join(dates), ", ".join(commits), f"{cpu_min:g} min")
        rows.append((name, *map(str, number), str(fitted), *when))
    return _block(columns(("PAPER", *VERDICTS, ">PARAMETERS", "RUN", "COMMIT", ">CPU"), rows))


def by_result(paper: Paper, full: FullRun) -> str:
    """Return the counts of each result that has a verdict."""
    judged = list(full.judged(paper))
    rows = []
    for result in paper.results:
        number = counts(verdict for result_of, _, verdict in judged if result_of is result)
        if any(number.values()):
            cells = [str(count) if count else "" for count in number.values()]
            rows.append((result.result_id, *cells, result.shows))
    return _block(columns(("RESULT", *VERDICTS, "SHOWS"), rows))


def _block(text: str) -> str:
    return f"```\n{text}\n```\n"


def rule() -> str:
    """Return the rule of tolerances, as its module has it."""
    return (tolerances.__doc__ or "").partition("\n\n")[2].strip() + "\n"


def filled(page: str, mark: str, text: str) -> str:
    """Return a page with a text between a mark and the end mark that follows it."""
    start = f"<!-- {mark} -->\n"
    if start not in page:
        raise SystemExit(f"there is no {start.strip()}")
    before, _, tail = page.partition(start)
    return f"{before}{start}{text}{END}{tail.partition(END)[2]}"


def written() -> dict[Path, str]:
    """Return the pages as they are to be."""
    results, design = (page.read_text(encoding="utf-8") for page in (RESULTS, DESIGN))
    design = filled(design, RULE, rule())
    for name, (paper, full) in _full_runs().items():
        design = filled(design, f"{SUMMARY} {name}", by_result(paper, full))
    return {RESULTS: filled(results, SUMMARY, summary()), DESIGN: design}


def block() -> str:
    """Return the summary between the comments by which it is found again."""
    return f"<!-- {SUMMARY} -->\n{summary()}{END}"


def main() -> int:
    """Write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", nargs="*", metavar="PAPER", help="replay these, or all, in full")
    parser.add_argument("--only", nargs="+", default=(), metavar="RESULT", help="of one paper")
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    papers = names() if arguments.run == [] else arguments.run or ()
    if arguments.only and len(papers) != 1:
        parser.error("--only needs --run with one paper")
    for name in papers:
        run(name, arguments.processes, arguments.only)
    for page, text in written().items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
