"""What is known of the long proofs: when each last ran, for how long and with what result.

``tests/proofs.json`` is kept with the sources: shards are cut by its seconds, and
``scripts/proofs.py`` lists it. A run writes what it saw into pytest's cache; ``scripts/proofs.py
--accept`` takes that over.

Each file of tests that runs alone (tests/integration/house/test_alone.py) is a proof of its own.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).parents[1] / "proofs.json"
CACHE_KEY = "bftrainer/proofs"
FRESH = " (fresh)"  # after the file whose property tests took new examples
UNKNOWN_S = 15.0  # of a test that has not run yet
ALONE = "tests/integration/house/test_alone.py::test_a_file_passes_alone["
ALONE_DAYS = 5  # in which each shard runs all of its files alone: more would double its time


@dataclass(frozen=True, slots=True)
class Proof:
    """The last run of one test; ``date`` is a day, ``result`` pytest's word."""

    result: str
    seconds: float
    date: str
    commit: str


def read(text: str) -> dict[str, Proof]:
    """Parse the file."""
    return {test: Proof(**fields) for test, fields in json.loads(text).items()}


def written(proofs: Mapping[str, Proof]) -> str:
    """Render the file: one line per test, so that changes of it can be read."""
    lines = (f"{json.dumps(test)}: {json.dumps(asdict(proofs[test]))}" for test in sorted(proofs))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def known() -> dict[str, Proof]:
    """Read what is kept with the sources."""
    return read(FILE.read_text()) if FILE.exists() else {}


def file_of(test: str) -> str:
    """Return the file of a test's id, with "(fresh)" where it is; a file that runs alone is one."""
    if test.startswith(ALONE):
        return test
    return test.split("::", maxsplit=1)[0]


def is_due(test: str, day: int) -> bool:
    """Return whether shards run a test on a day: of the files that run alone they run a part."""
    if not test.startswith(ALONE):
        return True
    return zlib.crc32(test.encode()) % ALONE_DAYS == day % ALONE_DAYS


def shards(tests: Iterable[str], n_shards: int, proofs: Mapping[str, Proof]) -> list[list[str]]:
    """Cut tests into parts of about equal seconds, whole files at a time.

    Tests of a file share clusters and templates. The longest file first, each to the part that has
    least: at most a third above the best cut (Graham, SIAM J. Appl. Math. 17, 1969).
    """
    seconds: dict[str, float] = {}
    of_file: dict[str, list[str]] = {}
    for test in sorted(tests):  # sums of numbers depend on their order, and workers have to agree
        file = file_of(test)
        of_file.setdefault(file, []).append(test)
        taken_s = proofs[test].seconds if test in proofs else UNKNOWN_S
        seconds[file] = seconds.get(file, 0.0) + taken_s
    parts: list[list[str]] = [[] for _ in range(n_shards)]
    sums = [0.0] * n_shards
    for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
        least = sums.index(min(sums))
        sums[least] += seconds[file]
        parts[least] += of_file[file]
    return parts
