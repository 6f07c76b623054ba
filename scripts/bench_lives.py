#!/usr/bin/env python3
"""What a trainer of one node keeps when its pilots are taken, one after the other, without notice.

Real agents and workers; books and journal are the daemon's own. Each pilot gets SIGTERM and
SIGCONT in all its processes, as batch systems send them, so long after it began (importing
included). *Kept*: steps in the newest checkpoint at its end, of those that it did. Both rules, that
of docs/adr/0032-expected-life.md and the one before it, run beside each other, so they share
whatever else the machine does. *End*: from SIGTERM until no process of the pilot is left.
*Overhead*: steps per second with checkpoints and without, in turns within one process that expects
to live for 20 s.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median

from _bench.benchmark import Benchmark, Measured, note
from _bench.plane import Plane
from _bench.stats import ratio_interval, tail
from _bench.waiting import wait_until_async

from bftrainer.ground import files
from bftrainer.ground.checkpoint_gap import LIVES
from bftrainer.site.policy.model import SitePolicy

SCRIPT = Path(__file__).resolve().parent / "workloads" / "lives_train.py"
RULES = ("life", "quarter")
NODE = "n0"
KEPT_SHARE = 0.8
END_S = 0.25  # no worse than that of the other rule, beside it
SLOWER = 0.05
SETTLING_S = 2.0  # of a turn: the last one's write ends
POLICY = SitePolicy(lease_s=60.0, heartbeat_s=0.5, join_window_s=0.2, failure_budget=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """One pilot's life."""

    rule: str
    state_mb: float
    life_s: float
    began: int  # step
    reached: int
    saved: int
    checkpoints: int
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A committed step, as the script wrote it down."""

    number: int
    at_s: float
    is_on: bool


def steps_in(path: Path) -> list[Step]:
    """Return all that a training wrote down."""
    with contextlib.suppress(FileNotFoundError):
        rows = [line.split() for line in path.read_text().splitlines()]
        return [Step(number=int(row[0]), at_s=float(row[1]), is_on=row[2] == "1") for row in rows]
    return []


def plane_of(directory: Path, rule: str, state_mb: float, **environment: str) -> Plane:
    """Return a cluster of one node."""
    directory.mkdir()
    steps = {"BENCH_RULE": rule, "BENCH_STEPS": str(directory / "steps")}
    return Plane(
        directory,
        agents=1,
        script=SCRIPT,
        model=f"{state_mb:g}",
        environment={**steps, **environment},
        policy=POLICY,
    )


async def row_of_lives(
    directory: Path, rule: str, state_mb: float, life_s: float, count: int
) -> list[Pilot]:
    """Let so many pilots begin and be taken."""
    done: list[Pilot] = []
    checkpoints = directory / "checkpoints"
    began_s = time.monotonic()
    async with plane_of(directory, rule, state_mb) as plane:
        plane.set_nodes([NODE])
        for number in range(count):
            if number:
                began_s = time.monotonic()
                plane.start_agent(NODE)
            before = len(steps_in(directory / "steps"))
            written = {p.name for p in files.newest_first(checkpoints)}
            seen = set(written)
            while time.monotonic() < began_s + life_s:
                seen |= {p.name for p in files.newest_first(checkpoints)}
                await asyncio.sleep(0.2)
            end_s = await taken(plane)
            own = steps_in(directory / "steps")[before:]
            newest = [files.step_of(path) for path in files.newest_first(checkpoints)]
            begun, reached = (own[0].number - 1, own[-1].number) if own else (0, 0)
            done.append(
                Pilot(
                    rule=rule,
                    state_mb=state_mb,
                    life_s=life_s,
                    began=begun,
                    reached=reached,
                    saved=max([*newest, begun]) if own else 0,
                    checkpoints=len(seen - written),
                    end_s=end_s,
                )
            )
    return done


async def taken(plane: Plane) -> float:
    """Signal a pilot as a batch system does; return how long its processes needed to end."""
    pids, agent = plane.processes_of(NODE), plane.agents[-1]
    began_s = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in reversed(pids):  # the agent last: what it does is not what is measured here
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    await wait_until_async(
        lambda: agent.poll() is not None and not any(map(is_there, pids)),
        "the end of a pilot",
        patience_s=30.0,
        interval_s=0.002,
    )
    return time.monotonic() - began_s


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def rates(directory: Path, state_mb: float, turns: int) -> tuple[list[list[float]], ...]:
    """Return the steps' durations, with checkpoints and without, by turn."""
    lives = {LIVES: " ".join(["20"] * 8)}
    path = directory / "steps"
    async with plane_of(directory, "turns", state_mb, **lives) as plane:
        plane.set_nodes([NODE])

        def enough() -> list[list[Step]]:
            every = [list(some) for _, some in groupby(steps_in(path), key=lambda one: one.is_on)]
            return every if len(every) > 2 * turns + 2 else []

        found = await plane.until(enough, "turns", 120.0 * turns)
    found = found[1:-1]  # the first and the last are not whole
    blocks: dict[bool, list[list[float]]] = {True: [], False: []}
    for some in found:
        late = [one.at_s for one in some if one.at_s - some[0].at_s > SETTLING_S]
        blocks[some[0].is_on].append([b - a for a, b in pairwise(late)])
    return blocks[True][:turns], blocks[False][:turns]


async def both(directory: Path, state_mb: float, life_s: float, count: int) -> list[Pilot]:
    """Run both rules beside each other."""
    rows = [
        row_of_lives(directory / f"{rule}-{state_mb:g}-{life_s:g}", rule, state_mb, life_s, count)
        for rule in RULES
    ]
    return [pilot for row in await asyncio.gather(*rows) for pilot in row]


def share(pilots: Sequence[Pilot]) -> float:
    """Return which part of the steps done was kept."""
    return sum(p.saved - p.began for p in pilots) / max(1, sum(p.reached - p.began for p in pilots))


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Run all lives, then the turns."""
    logging.getLogger("bftrainer").setLevel(logging.ERROR)
    lives_s = [float(text) for text in options.lives.split(",")]
    states_mb = [float(text) for text in options.states.split(",")]
    count = 2 if options.quick else options.count
    pilots: list[Pilot] = []
    slower: list[tuple[float, tuple[float, float, float]]] = []
    with tempfile.TemporaryDirectory(prefix="bft-lives-") as scratch:
        try:
            for state_mb in states_mb:
                for life_s in lives_s:
                    note(f"{count} pilots of {life_s:g} s, {state_mb:g} MB")
                    pilots += asyncio.run(both(Path(scratch), state_mb, life_s, count))
            for state_mb in states_mb if options.turns else ():
                note(f"turns with {state_mb:g} MB")
                directory = Path(scratch) / f"turns-{state_mb:g}"
                on, off = asyncio.run(rates(directory, state_mb, options.turns))
                means = [[[sum(b) / len(b)] for b in blocks] for blocks in (on, off)]
                slower.append((state_mb, ratio_interval(means[0], means[1])))
        finally:
            judge(pilots, slower, states_mb[0], measured)


def judge(
    pilots: Sequence[Pilot],
    slower: Sequence[tuple[float, tuple[float, float, float]]],
    small_mb: float,
    measured: Measured,
) -> None:
    """Tabulate, and compare with the targets."""
    rows = []
    for key, some in groupby(pilots, key=lambda p: (p.state_mb, p.life_s, p.rule)):
        own = list(some)
        name, end_s = tail([p.end_s for p in own])
        rows.append(
            (
                f"{key[0]:g} MB, pilots of {key[1]:g} s, {key[2]}",
                f"{sum(p.reached - p.began for p in own)}",
                f"{share(own):.1%}",
                f"{sum(p.checkpoints for p in own)}",
                f"{median(p.end_s for p in own):.3f}, {end_s:.3f} ({name})",
            )
        )
        if key[2] == "life" and key[0] == small_mb:
            what = f"kept of pilots of {key[1]:g} s"
            measured.at_least(what, share(own), KEPT_SHARE, unit="", note=f"{len(own)} in a row")
    headings = ("state, pilots, rule", "steps done", "kept", "checkpoints", "end, s")
    measured.table("Lives", headings, rows)
    ends = {rule: [p.end_s for p in pilots if p.rule == rule] for rule in RULES}
    if all(ends.values()):
        added_s = median(ends["life"]) - median(ends["quarter"])
        measured.at_most("end of a pilot later than by the rule before", added_s, END_S)
    for state_mb, (ratio, low, high) in slower:
        said = f"95% {low - 1:.1%} to {high - 1:.1%}"
        what = f"steps longer with checkpoints, {state_mb:g} MB"
        if state_mb == small_mb:
            measured.at_most(what, ratio - 1.0, SLOWER, unit="", note=said)
        else:
            measured.tables.append(f"{what}: {ratio - 1.0:.1%} ({said})")
    measured.results |= {"pilots": [asdict(p) for p in pilots], "slower": list(slower)}


BENCHMARK = Benchmark(
    name="lives",
    title="Targets",
    about=__doc__,
    quick="2 pilots of each",
    options={
        "--lives": {"default": "20,40,80", "help": "of pilots, s (%(default)s)"},
        "--states": {"default": "1,200", "help": "of the training, MB (%(default)s)"},
        "--count": {"type": int, "default": 5, "help": "pilots in a row (%(default)s)"},
        "--turns": {"type": int, "default": 6, "help": "with checkpoints; 0: none"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
