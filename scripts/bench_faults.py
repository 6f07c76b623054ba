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
import contextlib
import json
import logging
import os
import shutil
import signal
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

from _bench.fault_life import AGENT_TIMEOUT_S, WORKER_LEASE_S
from _bench.faults import Outcome, live
from _bench.network import Network, why_not
from _bench.stats import tail
from _bench.targets import Target, exit_code, print_targets, write_json

FULL: Final = 1000
QUICK: Final = 30
PER_LIFE: Final = 25
LANES: Final = 3  # they mostly wait: for leases, back-offs, templates
LIMIT_S: Final = {
    "kill": 0.30,
    "kill rank 0": 0.30,
    "stop": WORKER_LEASE_S + 0.5,
    "agent falls silent": AGENT_TIMEOUT_S + 0.5,
    "node cut off": AGENT_TIMEOUT_S + 0.5,
}


class Lives:
    """Lives beside each other until there are enough schedules or the time is up."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self._options = options
        self._scratch = scratch
        self._until_s = time.monotonic() + options.minutes * 60.0
        self.outcomes = earlier(options)
        self._left = wanted_of(options) - sum(len(o.schedules) for o in self.outcomes)
        why = why_not()
        self._has_network = not why
        if why:
            note(f"no node is cut off: {why}")
        self._seed = max([options.seed, *(o.seed + 1 for o in self.outcomes)])

    async def run(self) -> None:
        """Run them; what there is is written down after each. A signal ends them in order."""
        lanes = asyncio.gather(*(self._lane() for _ in range(self._options.lanes)))
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, lanes.cancel)
        await lanes

    async def _lane(self) -> None:
        while self._left > 0 and time.monotonic() < self._until_s:
            count, seed = min(self._left, PER_LIFE), self._seed
            self._left -= count
            self._seed += 1
            directory = self._scratch / f"life-{seed}"
            shutil.rmtree(directory, ignore_errors=True)  # of a run that was ended
            directory.mkdir()
            with self._network() as network:
                outcome = await live(directory, seed, count, note, self._until_s, network)
            self.outcomes.append(outcome)
            self._tell(outcome)
            if outcome.is_good:
                await asyncio.to_thread(shutil.rmtree, directory)
            if self._options.json:
                write_down(self._options, self.outcomes)

    def _network(self) -> contextlib.AbstractContextManager[Network | None]:
        return Network() if self._has_network else contextlib.nullcontext()

    def _tell(self, outcome: Outcome) -> None:
        done = sum(len(o.schedules) for o in self.outcomes)
        note(
            f"seed {outcome.seed}: {len(outcome.schedules)} schedules, {outcome.steps} steps,"
            f" {outcome.took_s:.0f} s; {done} done"
        )
        if not outcome.is_good:
            note(
                f"seed {outcome.seed}: {outcome.hangs + outcome.sample_errors + outcome.divergent}"
            )
            note(f"again: scripts/bench_faults.py --seed {outcome.seed} --schedules {PER_LIFE}")


def wanted_of(options: argparse.Namespace) -> int:
    """Return how many schedules are asked for, earlier ones included."""
    return int(options.schedules or (QUICK if options.quick else FULL))


def earlier(options: argparse.Namespace) -> list[Outcome]:
    """Return what the file already has, if it is to be added to."""
    if not (options.append and options.json and options.json.exists()):
        return []
    return [Outcome.of(found) for found in json.loads(options.json.read_text())["lives"]]


def write_down(options: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    """Write all lives and the targets to the file."""
    targets = targets_of(outcomes, wanted_of(options))
    write_json(options.json, "faults", {"lives": [asdict(o) for o in outcomes]}, targets)


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
    parser.add_argument("--lanes", type=int, default=LANES, help="lives at once (%(default)s)")
    parser.add_argument("--minutes", type=float, default=600.0, help="no longer than this")
    parser.add_argument("--seed", type=int, default=1, help="of the first life")
    parser.add_argument(
        "--keep", type=Path, help="keep logs and records of lives that went wrong here"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write after every life")
    parser.add_argument("--append", action="store_true", help="go on from what that file has")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run, print, judge."""
    options = parse(argv)
    logging.getLogger("bftrainer").setLevel(logging.CRITICAL)  # we break things on purpose
    started = time.monotonic()
    is_whole = True
    with tempfile.TemporaryDirectory(prefix="bft-faults-") as scratch:
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
        lives = Lives(options, options.keep or Path(scratch))
        try:
            asyncio.run(lives.run())
        except asyncio.CancelledError:
            is_whole = False
    print_kinds(lives.outcomes)
    targets = targets_of(lives.outcomes, wanted_of(options))
    print_targets("Targets", targets)
    took_s = time.monotonic() - started
    print(
        f"{took_s:.0f} s, {options.lanes} lives at once; load at the end {os.getloadavg()[0]:.1f}"
    )
    if options.json:
        write_down(options, lives.outcomes)
    return exit_code(targets) if is_whole else 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
