#!/usr/bin/env python3
"""What the copy of a lone trainer's state costs, how old it is, and what a lost node costs.

Real agents on this machine, one trainer of one node, states of several sizes. Copying is
switched on and off in turns, so that what disturbs the machine disturbs both; then the
node's agent is killed without notice and the trainer resumes on another. Prints targets
with ``met`` or ``missed``; exits 1 when one is missed. docs/design/elastic-runtime.md explains.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import asdict

from _bench.benchmark import Benchmark, Measured
from _bench.copies import Copies, copies

from bftrainer.elastic.replica_sender import AGE_S, MAX_SHARE

SIZES_MB = (1, 50, 200)
HEADINGS = ("state", "copies", "step", "with copies", "95 %", "stands still", "sent within")


def measure(arguments: argparse.Namespace, measured: Measured) -> None:
    """Measure every size of state."""
    block_s, blocks = (8.0, 2) if arguments.quick else (20.0, 4)
    found: list[Copies] = []
    try:
        for size_mb in SIZES_MB:
            found.append(asyncio.run(copies(size_mb, block_s, blocks)))
            _judge(found[-1], measured)
    finally:
        measured.results["measured"] = [asdict(one) for one in found]
        rows = [_row(one) for one in found]
        measured.table("Copies of the state", (*HEADINGS, "worst age", "lost"), rows, left=0)


def _judge(one: Copies, measured: Measured) -> None:
    of = f"{one.size_mb} MB"
    share, limit = 100.0 * one.share, 100.0 * MAX_SHARE
    about = f"mean of {one.copies}"
    measured.at_most(f"{of}: training stands still for copies", share, limit, "%", about)
    measured.at_most(f"{of}: age of the newest copy", one.age_s, AGE_S, note="worst")
    lost = f"{of}: training lost with the only node"
    measured.at_most(lost, one.loss_s, AGE_S, note=one.resumed_from)


def _row(one: Copies) -> tuple[str, ...]:
    ratio, low, high = one.step_ratio
    return (
        f"{one.size_mb} MB", str(one.copies), f"{one.step_ms:.1f} ms", f"x {ratio:.3f}",
        f"{low:.3f} to {high:.3f}", f"{one.hold_ms:.1f} ms", f"{one.send_s:.2f} s",
        f"{one.age_s:.2f} s", f"{one.loss_s:.2f} s",
    )  # fmt: skip


BENCHMARK = Benchmark(
    name="state",
    title="A lone trainer's state",
    about=__doc__,
    quick="short blocks",
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
