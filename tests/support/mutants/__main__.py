"""Would the tests notice if a line were wrong? Changes the product's code, one spot at a time.

``draw`` draws changes, evenly over seven areas; ``tests/mutants.json`` is kept. ``cover`` finds
which tests run which line, also in the processes they start. ``run`` has the tests of a changed
line run in a private copy of a tree, cheapest first, until one fails, or hangs.
``compare`` shows two such runs: what one suite notices and the other does not.

A test counts only if it passes on the unchanged copy.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import accumulate, chain, repeat
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final

from coverage import CoverageData
from coverage.exceptions import DataError

from tests.support.mutants.draw import AREAS, Mutant, draw, modules
from tests.support.mutants.tree import Tree

ROOT: Final = Path(__file__).resolve().parents[3]
KEPT: Final = ROOT / "tests" / "mutants.json"
FILES: Final = ROOT / ".pytest_cache" / "mutants"
PURE: Final = ("tests/unit", "tests/property", "tests/simulate", "tests/fuzz", "tests/elastic")
CLOSE: Final = 3  # files
OF_EACH: Final = 5  # tests
AT_ONCE: Final = (CLOSE * OF_EACH, 60, 400)  # of a line that hundreds run, most are seen by few
LIMIT_S: Final = 30.0
TIMES: Final = 4  # a hang takes longer than that and so many times what was measured

Cover = dict[str, Any]


def main() -> int:
    """Do one verb."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # copies of trees are removed
    FILES.mkdir(parents=True, exist_ok=True)
    return int(options.verb(options) or 0)


# ---- draw --------------------------------------------------------------------------


def _draw(options: argparse.Namespace) -> None:
    lines = [json.dumps(asdict(m)) for m in draw(ROOT, options.seed, options.count)]
    options.out.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def kept(path: Path = KEPT) -> list[Mutant]:
    """Return the changes that were drawn."""
    return [Mutant(**plain) for plain in json.loads(path.read_text("utf-8"))]


# ---- cover -------------------------------------------------------------------------


def _cover(options: argparse.Namespace) -> None:
    """Add what tests run to what is known."""
    with Tree(options.tree) as tree:
        files = [file for of_area in modules(tree.root).values() for file in of_area]
        (tree.root / ".coveragerc").write_text(
            "[run]\nparallel = True\nrelative_files = True\npatch = fork, _exit\n"
            f"data_file = {tree.root}/.traces/t\ninclude =\n"
            + "".join(f"    {tree.root}/{file}\n" for file in files)
        )
        (tree.root / ".traces").mkdir()
        tree.at_start("import tests.support.mutants.tracing")
        run = tree.test(
            options.tests or PURE,
            *("-m", options.marks, "--ignore=tests/unit/house/test_house_rules.py"),
            COVERAGE_PROCESS_START=str(tree.root / ".coveragerc"),
            MUTANTS_CONTEXT=str(tree.root / ".context"),
        )
        print(run.output[-2000:])
        lines = _lines(tree.root / ".traces", files)
    cover = _read(options.cover) or {"seconds": {}, "lines": {}}
    cover["seconds"] |= run.seconds
    for place, tests in lines.items():
        cover["lines"][place] = sorted({*cover["lines"].get(place, ()), *tests})
    options.cover.write_text(json.dumps(cover))


def _lines(traces: Path, files: Iterable[str]) -> dict[str, set[str]]:
    """``FILE:LINE`` → tests; a file of tests stands for all of them."""
    tests_of: dict[str, set[str]] = defaultdict(set)
    for path in traces.iterdir():
        data = CoverageData(str(path))
        try:
            data.read()
        except DataError:
            continue  # its process was killed while it wrote
        for source in data.measured_files():
            file = next(f for f in files if source.endswith(f))
            for line, contexts in data.contexts_by_lineno(source).items():
                tests_of[f"{file}:{line}"] |= {c for c in contexts if c}
    return tests_of


class Covering:
    """Which tests run a line, in which order they are tried."""

    def __init__(self, cover: Cover) -> None:
        self.seconds: Mapping[str, float] = cover["seconds"]
        self._tests: Mapping[str, Sequence[str]] = cover["lines"]
        self._lines: dict[str, Counter[str]] = defaultdict(Counter)  # of a file of tests, by module
        for place, tests in self._tests.items():
            for file in {test.partition("::")[0] for test in tests}:
                self._lines[file][place.partition(":")[0]] += 1

    def of(self, mutant: Mutant) -> list[str]:
        """Return some tests of files that run little else first, then those that cost least."""
        covering = {t for n in mutant.lines for t in self._tests.get(f"{mutant.file}:{n}", ())}
        whole = {t for t in covering if "::" not in t}
        of_files: dict[str, list[str]] = defaultdict(list)
        for test in sorted(self.seconds, key=lambda t: (self.seconds[t], t)):
            file = test.partition("::")[0]
            if test in covering or file in whole:
                of_files[file].append(test)
        close = sorted(of_files, key=lambda f: -self._closeness(f, mutant.file))
        first = [t for file in close[:CLOSE] for t in of_files[file][:OF_EACH]]
        cheap = sorted(of_files.values(), key=lambda file: sum(self.seconds[t] for t in file))
        return list(dict.fromkeys([*first, *(test for file in cheap for test in file)]))

    def _closeness(self, tests: str, module: str) -> float:
        return self._lines[tests][module] / self._lines[tests].total()


# ---- run ---------------------------------------------------------------------------


class Runs:
    """Runs tests on changed copies, and knows which tests fail without a change."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.covering = Covering(_read(options.cover))
        self.before: dict[str, Any] = _read(options.before) if options.before else {}
        self.results: dict[str, Any] = _read(options.json)
        self.path: Path = options.json
        self.marks: str = options.marks
        self.most_s: float = options.most_s
        self.failing: set[str] = set()  # without a change
        self.trees: SimpleQueue[Tree] = SimpleQueue()
        self.lock = Lock()

    def is_open(self, mutant: Mutant) -> bool:
        """Whether there is something to run: its tests, or more of them than the last time."""
        if self.before and self.before[mutant.id]["state"] != "killed":
            return False
        result = self.results.get(mutant.id)
        return not result or (
            result["state"] == "survived" and result["left"] > 0 and not self.before
        )

    def run(self, mutant: Mutant) -> None:
        """Find a test that notices it."""
        tree = self.trees.get()
        try:
            result = self._result(tree, mutant)
        finally:
            self.trees.put(tree)
        with self.lock:
            self.results[mutant.id] = result
            self.path.write_text(json.dumps(self.results, indent=0))
            print(mutant.id, f"{mutant.file}:{mutant.line}", *result.values(), flush=True)

    def _result(self, tree: Tree, mutant: Mutant) -> dict[str, Any]:
        tests = self.covering.of(mutant)
        text = mutant.apply(tree.read(mutant.file))
        if not tests or text is None:
            return {"state": "gone" if tests else "not covered", "by": "", "left": 0}
        n_untried = self.results.get(mutant.id, {"left": len(tests)})["left"]
        first = self.before.get(mutant.id, {}).get("by", "")
        tests_to_run, n_left = self._affordable([t for t in tests if t != first][-n_untried:])
        if first in tests:
            tests_to_run = [first, *tests_to_run]
        noticed_by = self._noticing(
            tree, mutant.file, text, tests_to_run, self.marks, int(first in tests)
        )
        result = {"state": "killed" if noticed_by else "survived", "by": noticed_by, "left": n_left}
        if first and not noticed_by:
            proofs = self._noticing(tree, mutant.file, text, tests_to_run, f"not ({self.marks})", 0)
            result["proof"] = proofs or f"gone: {first}"
        return result

    def _affordable(self, tests: list[str]) -> tuple[list[str], int]:
        """Return the first tests, as many as may cost, and how many are left."""
        costs = accumulate(float(self.covering.seconds[t]) for t in tests)
        count = max(1, sum(cost <= self.most_s for cost in costs))
        return tests[:count], max(0, len(tests) - count)

    def _noticing(
        self, tree: Tree, file: str, text: str, tests: Sequence[str], marks: str, alone: int
    ) -> str:
        """Return the first test that fails here, or nothing."""
        tests_left = [t for t in tests if t not in self.failing and tree.read(t.split("::")[0])]
        for count in chain([alone], AT_ONCE, repeat(AT_ONCE[-1])):
            if not tests_left:
                return ""
            batch, tests_left = tests_left[:count], tests_left[count:]
            if batch:
                with tree.changed(file, text):
                    run = tree.test(batch, "-x", "-m", marks, limit_s=self._limit_s(batch))
                if run.noticed:
                    return run.noticed
        raise AssertionError

    def _limit_s(self, tests: Iterable[str]) -> float:
        return LIMIT_S + TIMES * sum(float(self.covering.seconds.get(t, 0.0)) for t in tests)

    def doubt(self, tree: Tree) -> bool:
        """Take back what was noticed by tests that fail without a change; say whether it was."""
        killers = {r["by"]: i for i, r in self.results.items() if r["state"] == "killed"}
        run = tree.test([t for t in killers if "::" in t], "-m", self.marks)
        self.failing |= {t for t in killers if "::" in t} - run.passed
        for test in self.failing & killers.keys():
            print(f"fails without a change: {test}", file=sys.stderr)
        wrong = [i for i, r in self.results.items() if r["by"] in self.failing]
        for mutant_id in wrong:
            del self.results[mutant_id]
        return bool(wrong)


def _run(options: argparse.Namespace) -> None:
    runs = Runs(options)
    trees = [Tree(options.tree) for _ in range(options.jobs)]
    try:
        for tree in trees:
            runs.trees.put(tree)
        is_done = False
        while not is_done:
            mutants = [m for m in kept() if m.area in options.areas and runs.is_open(m)]
            with ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(runs.run, mutants))
            is_done = not runs.doubt(trees[0])
    finally:
        for tree in trees:
            tree.__exit__()


# ---- compare -----------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    """Print the table of two runs; fail if more is lost than may be."""
    before, after = _read(options.before), _read(options.json)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    lost_mutants = []
    for mutant in kept():
        was = before[mutant.id]["state"]
        now = after.get(mutant.id, {}).get("state")
        counts[mutant.area].update(("drawn", was))
        counts[mutant.area]["killed after"] += now == "killed"
        if was == "killed" and now != "killed":
            lost_mutants.append(mutant)
    columns = ("drawn", "not covered", "survived", "killed", "killed after")
    print("| area |", " | ".join(columns), "|")
    print("|---" * (1 + len(columns)) + "|")
    counts["all"] = sum(counts.values(), Counter())
    for area in (*AREAS, "all"):
        print(f"| {area} |", " | ".join(str(counts[area][c]) for c in columns), "|")
    for mutant in lost_mutants:
        change = f"{mutant.before} → {mutant.after}"
        result = after.get(mutant.id, {"state": "not run"})
        print(f"* {mutant.file}:{mutant.line} {change}: {result.get('proof') or result['state']}")
    return int(len(lost_mutants) > options.most)


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    drawing = verbs.add_parser("draw")
    drawing.set_defaults(verb=_draw)
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, required=True)
    drawing.add_argument("--out", type=Path, default=KEPT)
    for name, verb in (("cover", _cover), ("run", _run)):
        testing = verbs.add_parser(name)
        testing.set_defaults(verb=verb)
        testing.add_argument("--tree", type=Path, default=ROOT, help="that is copied")
        testing.add_argument("--marks", default="not long", help="pytest's -m")
        testing.add_argument("--cover", type=Path, default=FILES / "cover.json")
        if name == "cover":
            testing.add_argument("tests", nargs="*", help=f"files or directories; {' '.join(PURE)}")
        else:
            testing.add_argument("--jobs", type=int, default=1)
            testing.add_argument("--areas", nargs="+", default=list(AREAS))
            testing.add_argument(
                "--most-s", type=float, default=300.0, help="tests of one change cost"
            )
            testing.add_argument("--before", type=Path, help="only what this run has killed")
            testing.add_argument("--json", type=Path, default=FILES / "before.json")
    comparing = verbs.add_parser("compare")
    comparing.set_defaults(verb=_compare)
    comparing.add_argument("before", type=Path)
    comparing.add_argument("json", type=Path)
    comparing.add_argument("--most", type=int, default=6, help="lost")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
