"""What does writing down cost a daemon of a large site?

Real decisions of a drawn site (``_bench.site_stream``) are written into a real journal on this
machine's disk: bytes of each, processor time before the requests of a decision go out and
after, and how long a daemon takes to start on what is left of a year.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from _bench.benchmark import Benchmark, Measured, note
from _bench.journalling import BETWEEN_S, Start, Written, restarted, written

from bftrainer.journal import tables
from bftrainer.journal.differences import LONGEST_CHAIN
from bftrainer.site.policy.model import SitePolicy

SIZES = (1_000, 5_000)
QUEUES = (0, 1_000, 10_000)
DECISION_BYTES = 20_000.0
BEFORE_S = 0.005
YEAR_GB = 20.0
RESTART_S = 5.0
SHORT_BYTES = 1_000.0  # what is written of trainers and pilots, per decision


def measure(asked: argparse.Namespace, measured: Measured) -> None:
    """Write, and start again."""
    steps = 6 if asked.quick else LONGEST_CHAIN
    entries = 500 if asked.quick else int(0.85 * tables.ENTRIES_BETWEEN)
    sizes, queues = (SIZES[:1], QUEUES[:2]) if asked.quick else (SIZES, QUEUES)
    found: list[Written] = []
    with tempfile.TemporaryDirectory(prefix="bft-journal-") as place:
        for n_nodes in sizes:
            for n_pending in queues:
                path = Path(place) / f"{n_nodes}-{n_pending}" / "journal.db"
                found.append(written(path, n_nodes, n_pending, steps))
                note(str(found[-1]))
                _judge(found[-1], measured)
        size = int(max(w.ordinary_bytes for w in found))
        starts = [restarted(path, entries, size) for _ in range(2)]
    _judge_year(max(found, key=_each_bytes), measured)
    for start in starts:
        _judge_start(start, measured)
    measured.results["written"] = [asdict(w) for w in found]
    measured.results["starts"] = [asdict(s) for s in starts]


def _judge(found: Written, measured: Measured) -> None:
    where = f"{found.n_nodes} nodes, {found.n_pending} pending"
    whole = f"whole {found.whole_bytes / 1e3:.0f} kB"
    what = f"a decision, {where}"
    measured.at_most(what, found.ordinary_bytes, DECISION_BYTES, "bytes", whole)
    about = f"look {1e3 * found.look_s:.0f} ms, after {1e3 * found.after_s:.0f} ms, "
    about += f"decide {1e3 * found.decide_s:.0f} ms"
    measured.at_most(f"before its requests, {where}", found.before_s, BEFORE_S, note=about)


def _judge_year(found: Written, measured: Measured) -> None:
    """What lies on disk in the end, if the site with the longest entries never rests."""
    days = SitePolicy().journal_days
    kept = 86_400.0 / BETWEEN_S * days + tables.ENTRIES_BETWEEN
    what = f"after a year, {found.n_nodes} nodes, {found.n_pending} pending"
    about = f"a decision every {BETWEEN_S:g} s, {days} days kept"
    measured.at_most(what, _each_bytes(found) * kept / 1e9, YEAR_GB, "GB", about)


def _each_bytes(found: Written) -> float:
    """What a decision adds in the long run, with its share of those that are written whole."""
    return found.ordinary_bytes + found.whole_bytes / LONGEST_CHAIN + SHORT_BYTES


def _judge_start(found: Start, measured: Measured) -> None:
    about = f"{found.read} read of {found.file_bytes / 1e6:.0f} MB; "
    about += f"{found.processor_s:.1f} s of processor time"
    what = f"start, {found.entries} entries there"
    measured.at_most(what, found.seconds, RESTART_S, note=about)


BENCHMARK = Benchmark(
    name="journal",
    title="What writing down costs",
    about=__doc__,
    quick="1,000 nodes, few decisions",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
