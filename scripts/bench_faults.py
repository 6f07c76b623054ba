#!/usr/bin/env python3
"""Random faults against real agents and workers: nothing hangs, no sample is lost or double.

Each schedule is one to three faults (a worker killed, stopped, raising or out of memory; an
agent dead or silent; a loss during a rescale, warm-up or park; losses without a daemon),
then a new plan. Many share one life of a cluster; ``--seed N`` runs a life again.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' training script

from _bench.faults import AGENT_TIMEOUT_S, WORKER_LEASE_S, Outcome, live
from _bench.stats import tail
from _bench.targets import Target, exit_code, print_targets, write_json

FULL: Final = 1000
QUICK: Final = 30
PER_LIFE: Final = 20
LIMIT_S: Final = {
    "kill": 0.30,
    "kill rank 0": 0.30,
    "stop": WORKER_LEASE_S + 0.5,
    "agent falls silent": AGENT_TIMEOUT_S + 0.5,
}


def run(options: argparse.Namespace, scratch: Path) -> list[Outcome]:
    """Run lives until there are enough schedules or the time is up."""
    wanted = options.schedules or (QUICK if options.quick else FULL)
    until_s = time.monotonic() + options.minutes * 60.0
    outcomes: list[Outcome] = []
    seed = options.seed
    while (left := wanted - sum(len(o.schedules) for o in outcomes)) > 0:
        if time.monotonic() > until_s:
            break
        directory = scratch / f"life-{seed}"
        directory.mkdir()
        outcome = asyncio.run(live(directory, seed, min(left, PER_LIFE), note, until_s))
        outcomes.append(outcome)
        done = sum(len(o.schedules) for o in outcomes)
        note(f"seed {seed}: {len(outcome.schedules)} schedules, {outcome.steps} steps; {done} done")
        if not outcome.is_good:
            note(f"seed {seed}: {outcome.hangs + outcome.sample_errors + outcome.divergent}")
            note(f"again: scripts/bench_faults.py --seed {seed} --schedules {PER_LIFE}")
        seed += 1
    return outcomes


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


def print_kinds(outcomes: Sequence[Outcome]) -> None:
    """Print how often each fault came, and how long a schedule with it alone took."""
    counts = Counter(kind for o in outcomes for kinds in o.schedules for kind in kinds)
    print("fault, how often; alone: median, longest from the fault to the next generation")
    for kind, count in counts.most_common():
        times = [s for o in outcomes for s in o.recovery_s.get(kind, [])]
        alone = f"{median(times):6.2f} s {max(times):6.2f} s" if times else ""
        print(f"  {kind:34s} {count:5d}  {alone}")


def note(text: str) -> None:
    """Say where we are, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} schedules, not {FULL}")
    parser.add_argument("--schedules", type=int, default=0, help="so many")
    parser.add_argument("--minutes", type=float, default=600.0, help="no longer than this")
    parser.add_argument("--seed", type=int, default=1, help="of the first life")
    parser.add_argument("--keep", type=Path, help="keep logs and records in this directory")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run, print, judge."""
    options = parse(argv)
    logging.getLogger("bftrainer").setLevel(logging.CRITICAL)  # we break things on purpose
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bft-faults-") as scratch:
        if options.keep:
            options.keep.mkdir(parents=True)
        outcomes = run(options, options.keep or Path(scratch))
    print_kinds(outcomes)
    wanted = options.schedules or (QUICK if options.quick else FULL)
    targets = targets_of(outcomes, wanted)
    print_targets("Targets", targets)
    print(f"{time.monotonic() - started:.0f} s")
    if options.json:
        write_json(options.json, "faults", {"lives": [asdict(o) for o in outcomes]}, targets)
    return exit_code(targets)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
