#!/usr/bin/env python3
"""Lists the long proofs, those that have not run for longest first: date, result, seconds, test.

What this checkout ran since is in pytest's cache; ``--accept`` writes it to tests/proofs.json, from
which shards are cut. Tests that were removed are dropped then.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.support import proofs  # noqa: E402

EXAMPLES = "^ *@given|RuleBasedStateMachine|(Policy|QueueModel)Conformance"


class Collected:
    """Names of the proofs of today's sources."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Called by pytest."""
        self.names |= {item.nodeid for item in session.items}


def fresh() -> list[str]:
    """Return the files that have property tests."""
    ask = ["grep", "-rlE", "--include=test_*.py", EXAMPLES, "tests"]
    collection = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted(collection.stdout.split())


def today() -> set[str]:
    """Collect all long tests, and the files of which fresh examples run, too."""
    collected = Collected()
    with redirect_stdout(io.StringIO()):
        pytest.main(["--collect-only", "-m", "long", str(ROOT / "tests")], plugins=[collected])
    return collected.names | {file + proofs.FRESH for file in fresh()}


def main() -> int:
    """Merge, list, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--accept", action="store_true", help="write tests/proofs.json")
    parser.add_argument("--shards", type=int, default=7, help="how many to cut")
    parser.add_argument("--fresh", action="store_true", help="only print files of property tests")
    options = parser.parse_args()
    if options.fresh:
        print(*fresh())
        return 0
    cache = ROOT / ".pytest_cache" / "v" / proofs.CACHE_KEY
    results = proofs.known()
    if cache.exists():
        results |= proofs.read(cache.read_text())
    names = today()
    never = proofs.Proof("never", 0.0, "-", "-")
    for name in sorted(names, key=lambda one: (results.get(one, never).date, one)):
        result = results.get(name, never)
        print(
            f"{result.date:10} {result.commit:9} {result.result:7} {result.seconds:6.1f} s  {name}"
        )
    for number, part in enumerate(proofs.shards(names, options.shards, results)):
        seconds = sum(
            results[name].seconds if name in results else proofs.UNKNOWN_S for name in part
        )
        print(f"shard {number}/{options.shards}: {len(part)} tests, {seconds / 60:.1f} min")
    print(json.dumps(Counter(results.get(name, never).result for name in names)))
    if options.accept:
        proofs.FILE.write_text(proofs.written({n: results[n] for n in names if n in results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
