#!/usr/bin/env python3
"""Random faults against real agents and workers: nothing hangs, no sample is lost or double.

Each schedule is one to three faults (a worker killed, stopped, hanging, raising or out of
memory; members one step apart; an agent dead or silent; a node without its network; a loss
during a rescale, warm-up, checkpoint or park; losses without a daemon), then a new plan.
Many share one life of a cluster; ``--seed N`` runs a life again. Nodes lose their network
where this machine can have several (root, ``ip``, ``tc``, ``nsenter``).
Every worker writes down the samples of each step and a hash of the parameters: *sample error* is a
sample that is not exactly once in an epoch, *divergent* are members that differ. Not training
within 75 s of the new plan is a hang.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' training script

from _bench.benchmark import Benchmark, Measured
from _bench.fault_life import AGENT_TIMEOUT_S, WORKER_LEASE_S
from _bench.fault_lives import Lives
from _bench.faults import Outcome
from _bench.stats import tail
from _bench.targets import Target, write_json

FULL: Final = 1000
QUICK: Final = 30
LANES: Final = 3  # they mostly wait: for leases, back-offs, templates
LIMIT_S: Final = {
    "kill": 0.30,
    "kill rank 0": 0.30,
    "stop": WORKER_LEASE_S + 0.5,
    "agent falls silent": AGENT_TIMEOUT_S + 0.5,
    "node cut off": AGENT_TIMEOUT_S + 0.5,
}


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Run lives until there are enough schedules or the time is up."""
    logging.getLogger("bftrainer").setLevel(logging.CRITICAL)  # we break things on purpose
    wanted = options.schedules or (QUICK if options.quick else FULL)
    with tempfile.TemporaryDirectory(prefix="bft-faults-") as scratch:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
        directory = options.keep or Path(scratch)
        lives = Lives(options, directory, wanted, partial(_write, options, wanted))
        try:
            asyncio.run(lives.run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            tabulate(lives.outcomes, measured)
            measured.targets += targets_of(lives.outcomes, wanted)
            measured.results["lives"] = [asdict(o) for o in lives.outcomes]


def _write(options: argparse.Namespace, wanted: int, outcomes: Sequence[Outcome]) -> None:
    """Write what there is after every life: a run takes hours."""
    if options.json:
        results = {"lives": [asdict(o) for o in outcomes]}
        write_json(options.json, "faults", results, targets_of(outcomes, wanted))


def targets_of(outcomes: Sequence[Outcome], wanted: int) -> list[Target]:
    """Return the targets with what was found."""
    done = sum(len(o.schedules) for o in outcomes)
    lives = f"{done} schedules in {len(outcomes)} lives"
    found = [
        ("hangs", sum(len(o.hangs) for o in outcomes)),
        ("sample errors", sum(len(o.sample_errors) for o in outcomes)),
        ("divergent parameters", sum(len(o.divergent) for o in outcomes)),
    ]
    targets = [
        Target(name=f"faults: {name}", measured=n, limit=0, relation="<=", unit="found", note=lives)
        for name, n in found
    ]
    for kind, limit_s in LIMIT_S.items():
        times = [t for o in outcomes for t in o.recovery_s.get(kind, [])]
        if times:
            name, value = tail(times)
            targets.append(
                Target(
                    name=f"{kind}, to the next generation",
                    measured=value,
                    limit=limit_s,
                    relation="<=",
                    note=f"{name} of {len(times)}",
                )
            )
    return [
        Target(
            name="faults: schedules",
            measured=done,
            limit=wanted,
            relation=">=",
            unit="schedules",
            note=f"{sum(o.steps for o in outcomes)} steps",
        ),
        *targets,
    ]


def tabulate(outcomes: Sequence[Outcome], measured: Measured) -> None:
    """Show how often each fault came, and how long a schedule with it alone took."""
    counts = Counter(kind for o in outcomes for kinds in o.schedules for kind in kinds)
    rows = []
    for kind, count in counts.most_common():
        times = [s for o in outcomes for s in o.recovery_s.get(kind, [])]
        alone = (f"{median(times):.2f}", f"{max(times):.2f}") if times else ("", "")
        rows.append((kind, str(count), *alone))
    title = "Faults; of schedules with one: from the fault to the next generation, s"
    measured.table(title, ("fault", "how often", "median", "longest"), rows)


BENCHMARK = Benchmark(
    name="faults",
    title="Targets",
    about=__doc__,
    quick=f"{QUICK} schedules, not {FULL}",
    options={
        "--schedules": {"type": int, "default": 0, "help": "so many"},
        "--lanes": {"type": int, "default": LANES, "help": "lives at once (%(default)s)"},
        "--minutes": {"type": float, "default": 600.0, "help": "no longer than this"},
        "--seed": {"type": int, "default": 1, "help": "of the first life"},
        "--keep": {"type": Path, "help": "keep logs and records of lives that went wrong here"},
        "--append": {"action": "store_true", "help": "go on from what the --json file has"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
