"""Write docs/results.md (promises, verdicts on papers, benchmarks) and README's promises.

Takes the files that ``bench_X.py --json`` wrote from a directory (bench-out, where ``make bench``
puts them), keeps of each what the page shows in docs/results/, in place of what was there, and
writes the page and README's table from all that is kept. ``write_results.py docs/results`` writes
them anew. The table of the papers is that of ``write_reproductions.py``; what is promised stands in
``promises.ini``.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import write_reproductions
from _bench.promises import Promise, Verdict, promises, verdict_of
from _bench.targets import ROOT, Target

from bftrainer.model.columns import columns

KEPT, PAGE = Path("docs/results"), Path("docs/results.md")
SHOWN = 1  # targets of a benchmark; more only where more are missed
HEAD = """\
# Results

What was measured, how, and what was missed? This page first has what is promised, in
[README](../README.md) and beyond, with the measurement behind it, then what came out of the papers
that we repeat, and then each benchmark. `make promises` measures the promises again in an hour.

How do I read a benchmark's section? It begins with the question that the benchmark asks. Then come
the command, the day and the commit of its last run, the number of targets that were met and are not
shown, and remarks on the run. The table has all targets that were missed, and the first of those
that were met. `docs/results/*.json` have all targets, and `make bench` runs all benchmarks.

On which machine was this? The nodes of a run share one machine of two cores, without GPUs and with
Slurm 22.05. NCCL has run between workers that share one GPU, but not between GPUs. LSF is tested on
volclava 2.2, an open relative of LSF, and on a stand-in. Support of IBM's LSF 10.1 is written from
its documentation, and untried.

`scripts/write_results.py` writes this page; its docstring has the method.
"""
HEADS = ("promise", "to keep", "measured", "beside it", "by")
README, MARK = ROOT / "README.md", "promises"
PAPERS = """\
## Papers repeated

Do the numbers that five papers print come out here? The table counts them by verdict, and with them
the parameters that were fitted or chosen for that. [The papers repeated](design/reproduce.md) says
which numbers these are, and what the verdicts mean.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What is kept of one run of a benchmark."""

    benchmark: str  # bench_NAME.py
    command: str
    date: str
    commit: str
    remark: str  # what a reader of the figures must know; sentences
    targets: tuple[Target, ...]


def read_result(path: Path, remark: str = "") -> Result:
    """Read what a benchmark wrote, or what was kept of it.

    Raises:
        ValueError: it is neither.
    """
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        recorded: Mapping[str, str] = body.get("recorded", {})
        return Result(
            benchmark=body["benchmark"],
            command=recorded.get("command", "unknown command"),
            date=recorded.get("date", "unknown date"),
            commit=recorded.get("commit", "unknown commit"),
            remark=remark or recorded.get("remark", "") or _circumstances(body),
            targets=tuple(map(_target, body["targets"])),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise ValueError(f"{path} is not a benchmark's result: {problem!r}") from problem


def _circumstances(body: Mapping[str, Any]) -> str:
    """Return the load and the duration of a run, as a benchmark writes them."""
    if "load_after" not in body:
        return ""
    loads = f"Load {body['load']:.1f} at the start, {body['load_after']:.1f} at the end"
    return f"{loads}; {body['took_s'] / 60:.0f} minutes."


def _target(plain: Mapping[str, Any]) -> Target:
    names = {field.name for field in fields(Target)}
    return Target(**{name: value for name, value in plain.items() if name in names})


def keep(result: Result, directory: Path) -> None:
    """Write what the page needs of a result."""
    recorded = {name: getattr(result, name) for name in ("command", "date", "commit", "remark")}
    targets = [_without_unknown(asdict(target)) for target in result.targets]
    body = {"benchmark": result.benchmark, "recorded": recorded, "targets": targets}
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
    (directory / f"{result.benchmark}.json").write_text(text, encoding="utf-8")


def _without_unknown(target: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in target.items() if value is not None}


def stored_results(kept: Path) -> dict[str, Result]:
    """Return what is kept, by name, in the order of names."""
    results = map(read_result, sorted(kept.glob("*.json")))
    return {result.benchmark: result for result in results}


def page_of(kept: Path, scripts: Path) -> str:
    """Return the page: promises, papers, each benchmark that has a result, then those without."""
    results = stored_results(kept)
    questions = dict(_questions(scripts))
    papers = f"{PAPERS}\n{write_reproductions.block()}"
    told = f"## Promises\n\n{table_of(promises(), results)}"
    parts, measured_scripts = [HEAD, told, papers], set[str]()
    for result in results.values():
        if script := script_of(result.benchmark, questions):
            measured_scripts.add(script)
            parts.append("\n".join(_section(result, script, questions[script])))
    missing = sorted(questions.keys() - measured_scripts)
    if missing:
        names = ", ".join(f"`bench_{name}.py`" for name in missing)
        parts.append("\n".join(["## Not measured", "", *textwrap.wrap(f"{names}.", 118), ""]))
    return "\n".join(parts)


def readme_of(readme: str, results: Mapping[str, Result]) -> str:
    """Return README with the table of the promises that it tells."""
    told = [promise for promise in promises() if promise.is_in_readme]
    return write_reproductions.filled(readme, MARK, f"{table_of(told, results)}\n")


def table_of(told: Iterable[Promise], results: Mapping[str, Result]) -> str:
    """Return promises beside their hard case as it was measured, and by what."""
    rows = (HEADS, ("---",) * len(HEADS), *(_promise_cells(promise, results) for promise in told))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _promise_cells(promise: Promise, results: Mapping[str, Result]) -> tuple[str, ...]:
    result = results.get(promise.result)
    row = promise.worst_of(result.targets) if result else None
    if result is None or row is None:
        return f"{promise.says}.", "", str(Verdict.NOT_MEASURED), "", ""
    circumstances = [part for part in (promise.case_of(row), row.note, _interval_of(row)) if part]
    figure = f"**{in_words(row.measured, row.unit)}**"
    if circumstances:
        figure += f" ({'; '.join(circumstances)})"
    if verdict_of(row) is not Verdict.HELD:
        figure += ", missed"
    by = f"`{result.command}` ({result.date}, {result.commit})"
    return f"{promise.says}.", _limit_of(row), figure, promise.alternative_of(result.targets), by


def _limit_of(target: Target) -> str:
    sign = "≤" if target.relation == "<=" else "≥"
    return f"{sign}{in_words(target.limit, target.unit)}"


def _interval_of(row: Target) -> str:
    if row.low is None or row.high is None or "95%" in row.note:
        return ""
    return f"95% {row.low:.3g} to {row.high:.3g}"


def script_of(benchmark: str, scripts: Iterable[str]) -> str:
    """Return who measures it: ``x`` of x, and of x_option, a result of its own; "": nobody."""
    fitting = (script for script in scripts if f"{benchmark}_".startswith(f"{script}_"))
    return max(fitting, key=len, default="")


def _section(result: Result, script: str, question: str) -> Iterator[str]:
    targets = shown_of(result.targets)
    option = result.benchmark.removeprefix(script).replace("_", " --", 1)
    yield from (f"## bench_{script}.py{option}", "")
    yield from () if option else (question,)
    n_more = len(result.targets) - len(targets)
    also = f" Also met: {n_more}." if n_more else ""
    yield f"`{result.command}` ({result.date}, {result.commit}).{also}"
    yield from textwrap.wrap(result.remark, 118)
    rows = []
    for target in targets:
        figure = in_words(target.measured, target.unit) + ("" if target.is_met else ", missed")
        rows.append((target.name, _limit_of(target), figure))
    yield from ("", "```", columns(("TARGET", "TO REACH", "MEASURED"), rows).rstrip(), "```", "")


def shown_of(targets: Sequence[Target]) -> list[Target]:
    """Return all that are missed and the first of the others, one at least, in their order."""
    room = SHOWN - sum(not target.is_met for target in targets)
    met = [target for target in targets if target.is_met][: max(1, room)]
    return [target for target in targets if not target.is_met or target in met]


def in_words(value: float, unit: str) -> str:
    """Return a value with its unit, in a size that people read."""
    if unit == "s" and 0.0 < abs(value) < 0.1:
        value, unit = 1000.0 * value, "ms"
    number = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{3 if unit else 4}g}"
    return f"{number} {unit}".rstrip()


def _questions(scripts: Path) -> Iterator[tuple[str, str]]:
    """Yield each benchmark with the first line of its docstring."""
    for path in sorted(scripts.glob("bench_*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "."
        yield path.stem.removeprefix("bench_"), text.splitlines()[0]


def write_pages() -> None:
    """Write docs/results.md and README's table from all that is kept."""
    page = page_of(ROOT / KEPT, ROOT / "scripts")
    readme = readme_of(README.read_text(encoding="utf-8"), stored_results(ROOT / KEPT))
    (ROOT / PAGE).write_text(page, encoding="utf-8")
    README.write_text(readme, encoding="utf-8")


def main(arguments: Iterable[str]) -> int:
    """Keep the results of a directory, write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("directory", nargs="?", type=Path, default=Path("bench-out"))
    parser.add_argument("--remark", default="", help="sentences to put beside these results")
    options = parser.parse_args(list(arguments))
    if not options.directory.is_dir():
        parser.error(f"there is no directory {options.directory}: run a benchmark with --json")
    try:
        for path in sorted(options.directory.glob("*.json")):
            keep(read_result(path, options.remark), ROOT / KEPT)
        write_pages()
    except ValueError as problem:
        parser.error(str(problem))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
