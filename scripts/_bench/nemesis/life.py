"""One life of a small cluster: a schedule of faults is done to it, and what came of it is written.

A schedule comes in, what was recorded goes out, for ``verdicts``. Called by ``bench_nemesis`` and
by a test.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from _bench.benchmark import note
from _bench.nemesis import books
from _bench.nemesis.bed import EPOCH_S, Bed, bed
from _bench.nemesis.disks import Disks
from _bench.nemesis.outages import Outages
from _bench.nemesis.schedule import UNREACHABLE, Fault, Kind, Schedule
from _bench.nemesis.scheduler import Scheduler
from _bench.nemesis.signals import NUMBERS, Signals
from _bench.nemesis.verdicts import FINISHED, Recorded
from _bench.nemesis.watch import Watch
from _bench.waiting import BenchError, wait_until
from tests.support.hosts import HostError

START_S: Final = 300.0  # until all trainers train
AGAIN_S: Final = 240.0  # after the last fault, until all train again
END_S: Final = 300.0  # until all have finished
SLOWER: Final = 1.6  # faults take time to make: a schedule lasts longer than it says
SPARE_EPOCHS: Final = 20


class Injector(Protocol):
    """Makes faults of some kinds."""

    def begin(self, fault: Fault) -> None:
        """Make it."""

    def end(self, fault: Fault) -> None:
        """Undo it, or what is left of it."""


@dataclass(slots=True, kw_only=True)
class Life:
    """What is told of a life beside what is judged."""

    recorded: Recorded
    steps: tuple[int, ...]  # updates of each trainer
    left_out: list[str] = field(default_factory=list)  # faults that could not be made, and why
    refusals: list[str] = field(default_factory=list)  # of verbs that start the daemon
    n_starts: int = 0  # of the daemon
    tracebacks: list[str] = field(default_factory=list)  # in logs, their last lines
    took_s: float = 0.0


def live(schedule: Schedule, kept: Path | None = None) -> Life:
    """Do all faults of a schedule.

    Args:
        schedule: the faults.
        kept: a directory for journal and logs; None: they go.

    Raises:
        BenchError: the trainers do not begin to train, or a host does not come back.
    """
    began_s = time.monotonic()
    n_epochs = math.ceil(SLOWER * schedule.span_s / EPOCH_S) + SPARE_EPOCHS
    try:
        with bed(n_epochs) as test_bed:
            life = _life(test_bed, schedule)
            life.tracebacks = books.tracebacks(test_bed)
            if kept is not None:
                books.keep(test_bed, kept)
    except (AssertionError, HostError) as problem:
        raise BenchError(f"seed {schedule.seed}: {problem}") from problem
    life.took_s = time.monotonic() - began_s
    return life


def _life(there: Bed, schedule: Schedule) -> Life:
    outages = Outages(there)
    with Watch(there, lambda: outages.down) as watch:
        wait_until(lambda: min(there.steps()) > 0, "all train", patience_s=START_S, interval_s=0.5)
        left_out = _inject(schedule, _injectors(there, outages))
        note(f"seed {schedule.seed}: all faults are over")
        _await_training(there)
        pilots = books.pilots(there)
        there.hurry()
        with contextlib.suppress(BenchError):  # it is judged
            wait_until(
                lambda: set(there.states()) == {FINISHED},
                "all finish",
                patience_s=END_S,
                interval_s=0.5,
            )
        states, ended_s = there.states(), time.time()
    there.keeper.stop()
    recorded = books.recorded(there, pilots, states, ended_s, watch.free)
    return Life(
        recorded=recorded,
        steps=tuple(there.steps()),
        left_out=left_out,
        refusals=there.keeper.refusals,
        n_starts=len(there.keeper.starts_s),
    )


def _injectors(there: Bed, outages: Outages) -> Mapping[Kind, Injector]:
    signals, scheduler = Signals(there), Scheduler(there)
    return {
        **dict.fromkeys(NUMBERS, signals),
        **dict.fromkeys((*UNREACHABLE, Kind.APART), outages),
        **dict.fromkeys((Kind.CONTROLLER, Kind.JOB, Kind.SCANCEL), scheduler),
        Kind.DISK: Disks(there),
        Kind.CLOCK: there.clock,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The begin or the end of a fault."""

    at_s: float
    fault: Fault
    is_end: bool


def events(schedule: Schedule) -> list[Event]:
    """Return begins and ends in their order; an end comes before a begin of the same time."""
    moments = [Event(at_s=fault.at_s, fault=fault, is_end=False) for fault in schedule.faults]
    moments += [
        Event(at_s=fault.end_s, fault=fault, is_end=True)
        for fault in schedule.faults
        if fault.duration_s
    ]
    return sorted(moments, key=lambda event: (event.at_s, not event.is_end))


def _inject(schedule: Schedule, injectors: Mapping[Kind, Injector]) -> list[str]:
    """Make and undo all faults, none before its time; return those that could not be made."""
    left_out: dict[Fault, str] = {}
    began_s = time.monotonic()
    for event in events(schedule):
        fault = event.fault
        time.sleep(max(0.0, began_s + event.at_s - time.monotonic()))
        if fault in left_out:
            continue
        injector = injectors[fault.kind]
        passed_s = time.monotonic() - began_s
        if event.is_end:
            note(f"{passed_s:.1f} end of {fault}")
            injector.end(fault)
            continue
        note(f"{passed_s:.1f} begin of {fault}")
        try:
            injector.begin(fault)
        except (AssertionError, HostError) as problem:
            left_out[fault] = f"{fault}: {problem}"
    return list(left_out.values())


def _await_training(there: Bed) -> None:
    """Wait until each trainer has made updates since; if one does not, it is judged."""
    before = there.steps()

    def train() -> bool:
        has_moved = (now > then for now, then in zip(there.steps(), before, strict=True))
        states = there.states()
        return all(
            moved or state == FINISHED for moved, state in zip(has_moved, states, strict=True)
        )

    with contextlib.suppress(BenchError):
        wait_until(train, "all train again", patience_s=AGAIN_S, interval_s=1.0)
