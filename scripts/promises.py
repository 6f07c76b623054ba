"""Measure what README and the documentation promise, or say which of it is too old.

Short forms of the benchmarks run one after another: an hour on two cores, against regression.
``--full`` runs the full forms, keeps the results in docs/results/, and writes README's table and
docs/results.md. Both print each promise with what is stored, what came out now, its 95% interval,
and a verdict: held, unsure (missed by less than the interval), missed (as is stored), lost, not
measured; and *moved* where each figure is outside of the other's interval. They exit with 1 when
one is lost. ``--again DIR`` compares with an earlier run in DIR, and keeps this one there.
``--check`` is for a release: each promise must be measured, at most 300 commits ago, and of the
lines that it measures at most a quarter may be new. ``promises.ini`` says what is promised.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL
from typing import Final

import write_results
from _bench.benchmark import INTERRUPTED, note
from _bench.promises import Promise, Recipe, Verdict, promises, recipes, verdict_of
from _bench.targets import ROOT, Target

from bftrainer.batch.process import kill_group, run
from bftrainer.model.columns import columns

KEPT: Final = ROOT / write_results.KEPT
OUT: Final = ROOT / "bench-out"
HEADS: Final = ("PROMISE", ">BEFORE", ">NOW", ">INTERVAL", "VERDICT")
TIMES_AS_LONG, MINUTES_MORE = 3.0, 5.0  # until a benchmark is ended: a busy machine is slow
ENDS_WITHIN_S: Final = 60.0  # prints and writes what it has
MOST_COMMITS: Final = 300
MOST_NEW: Final = 0.25  # of the lines of what a result measures
EMPTY_TREE: Final = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"  # Git's name of it
Results = Mapping[str, write_results.Result]


def main(arguments: Sequence[str]) -> int:
    """Measure, or check, or say what would be measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="keep the results, write the tables")
    parser.add_argument(
        "--all", action="store_true", help="with --full: what no promise needs, too"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these promises")
    parser.add_argument("--again", type=Path, metavar="DIR", help="compare with the run kept there")
    parser.add_argument("--dry-run", action="store_true", help="say what would run, and how long")
    parser.add_argument("--check", action="store_true", help="say what is too old for a release")
    options = parser.parse_args(arguments)
    names = [promise.name for promise in promises()]
    if unknown := set(options.only or ()) - set(names):
        parser.error(f"no promise is called {', '.join(sorted(unknown))}; there are {names}")
    promise_list = [promise for promise in promises() if promise.name in (options.only or names)]
    stored = write_results.stored_results(KEPT)
    if options.check:
        problems = list(too_old(promise_list, stored))
        print("\n".join(problems) or "Each promise is measured, and none too long ago.")
        return 1 if problems else 0
    chosen_recipes = recipes_for(promise_list, is_full=options.full, has_all=options.all)
    if options.dry_run:
        print(plan_of(chosen_recipes, is_full=options.full))
        return 0
    kept = KEPT if options.full else options.again
    before = write_results.stored_results(options.again) if options.again else stored
    results = measured_by(chosen_recipes, is_full=options.full, kept=kept)
    if options.again:
        before = comparable(before, results)
    if options.full:
        write_results.write_pages()
    print(report_of(promise_list, stored, before, results))
    verdicts = [
        verdict_of(row_of(promise, results), row_of(promise, stored)) for promise in promise_list
    ]
    return 1 if Verdict.LOST in verdicts else 0


def recipes_for(promise_list: Sequence[Promise], *, is_full: bool, has_all: bool) -> list[Recipe]:
    """Return what has to run, once for all promises that it measures."""
    needed = {promise.result for promise in promise_list}
    return [
        recipe
        for name, recipe in recipes().items()
        if (has_all or name in needed) and (is_full or recipe.short)
    ]


def command_of(recipe: Recipe, *, is_full: bool) -> tuple[str, float]:
    """Return the command, and the minutes that it takes."""
    if is_full:
        return recipe.full, recipe.full_minutes
    return recipe.short, recipe.short_minutes


def plan_of(chosen_recipes: Sequence[Recipe], *, is_full: bool) -> str:
    """Return what would run, with its minutes."""
    commands = [command_of(recipe, is_full=is_full) for recipe in chosen_recipes]
    rows = [(f"{minutes:g}", f"scripts/{command}") for command, minutes in commands]
    total = sum(minutes for _, minutes in commands)
    return columns((">MINUTES", "COMMAND"), [*rows, (f"{total:g}", "in all")])


def measured_by(
    chosen_recipes: Sequence[Recipe], *, is_full: bool, kept: Path | None
) -> dict[str, write_results.Result]:
    """Run benchmarks one after another; return what came out, and keep it in a directory."""
    results = {}
    directory = OUT if is_full else OUT / "short"
    directory.mkdir(parents=True, exist_ok=True)
    for recipe in chosen_recipes:
        path = directory / f"{recipe.result}.json"
        path.unlink(missing_ok=True)
        is_ended = _run(*command_of(recipe, is_full=is_full), path)
        if not path.exists():
            note(f"{recipe.result}: no result; its output is in {path.with_suffix('.txt')}")
            continue
        result = replace(write_results.read_result(path), benchmark=recipe.result)
        results[recipe.result] = result
        # A part of a result does not replace a whole one.
        if kept and is_ended and json.loads(path.read_bytes()).get("is_whole"):
            write_results.keep(result, kept)
    return results


def _run(command: str, minutes: float, path: Path) -> bool:
    """Run a benchmark in a session of its own; return whether it came to its end."""
    script, *arguments = shlex.split(command)
    argv = [sys.executable, str(ROOT / "scripts" / script), *arguments, "--json", str(path)]
    note(f"{command}: about {minutes:g} minutes")
    began_s = time.monotonic()
    with (
        path.with_suffix(".txt").open("w") as output,
        subprocess.Popen(
            argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as child,
    ):
        try:
            status = child.wait(60.0 * (TIMES_AS_LONG * minutes + MINUTES_MORE))
        except subprocess.TimeoutExpired:
            note(f"{command}: ended, it took too long")
            status = INTERRUPTED
        finally:
            _end(child)
    note(f"{command}: {(time.monotonic() - began_s) / 60.0:.1f} minutes, status {status}")
    return status != INTERRUPTED


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a benchmark that still runs: first so that it writes what it has."""
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        kill_group(child.pid, SIGKILL)


def row_of(promise: Promise, results: Results) -> Target | None:
    """Return the row that counts for a promise; None: it was not measured."""
    result = results.get(promise.result)
    return promise.worst_of(result.targets) if result else None


def comparable(before: Results, results: Results) -> dict[str, write_results.Result]:
    """Return those of an earlier run that the same command measured."""
    return {
        name: result
        for name, result in before.items()
        if name in results and result.command == results[name].command
    }


def report_of(
    promise_list: Sequence[Promise], stored: Results, before: Results, results: Results
) -> str:
    """Return the table: what came out before and now, and verdicts, beside what is stored."""
    rows = []
    for promise in promise_list:
        then, now = row_of(promise, before), row_of(promise, results)
        verdict = str(verdict_of(now, row_of(promise, stored)))
        if then and now and _has_moved(then, now):
            verdict += ", moved"
        rows.append((promise.name, _measured(then), _measured(now), _interval(now), verdict))
    return columns(HEADS, rows)


def _measured(row: Target | None) -> str:
    return write_results.in_words(row.measured, row.unit) if row else "-"


def _interval(row: Target | None) -> str:
    if row is None or (row.low is None and row.high is None):
        return "-"
    ends = (row.low, row.high)
    return " to ".join("?" if e is None else write_results.in_words(e, row.unit) for e in ends)


def _has_moved(before: Target, now: Target) -> bool:
    """Return whether each is outside of the other's interval; one of them may have none."""
    pairs = [(a, b) for a, b in ((before, now), (now, before)) if (b.low, b.high) != (None, None)]
    return bool(pairs) and all(_is_outside(a.measured, b) for a, b in pairs)


def _is_outside(value: float, row: Target) -> bool:
    is_below = row.low is not None and value < row.low
    return is_below or (row.high is not None and value > row.high)


def too_old(promise_list: Sequence[Promise], stored: Results) -> Iterator[str]:
    """Yield why what is stored does not do for a release."""
    for promise in promise_list:
        if row_of(promise, stored) is None:
            yield f"{promise.name}: not measured (scripts/{recipes()[promise.result].full})"
    for name in dict.fromkeys(promise.result for promise in promise_list):
        if name in stored:
            yield from _aged(recipes()[name], stored[name].commit.partition(" ")[0])


def _aged(recipe: Recipe, commit: str) -> Iterator[str]:
    count = run(["git", "-C", str(ROOT), "rev-list", "--count", f"{commit}..HEAD"], timeout_s=60.0)
    again = f"(again: scripts/{recipe.full})"
    if not count.is_ok:
        yield f"{recipe.result}: its commit {commit} is not here {again}"
        return
    if int(count.stdout) > MOST_COMMITS:
        yield f"{recipe.result}: {int(count.stdout)} commits old {again}"
    share = _new_lines(commit, recipe.code) / max(1, _new_lines(EMPTY_TREE, recipe.code))
    if share > MOST_NEW:
        yield f"{recipe.result}: {share:.0%} of the lines that it measures are new {again}"


def _new_lines(since: str, paths: Sequence[str]) -> int:
    """Return how many lines HEAD has that a commit did not have, in Python below paths."""
    globs = [f":(glob){path}/**/*.py" for path in paths]
    argv = ["git", "-C", str(ROOT), "diff", "--numstat", since, "HEAD", "--", *globs]
    lines = run(argv, timeout_s=60.0).stdout.splitlines()
    return sum(int(line.split("\t")[0]) for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
