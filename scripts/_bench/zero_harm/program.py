"""Which runs a call makes, and making them, several at once. Called by ``bench_zero_harm``.

Cells in, kept runs out. Controls are A, A' and, jittered, as many more as asked for; runs
with bftrainer are B and as many jittered. Equal jitters come with equal numbers.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Barrier

from _bench.waiting import BenchError
from _bench.zero_harm import arm
from _bench.zero_harm.arm import Stage
from _bench.zero_harm.cells import Cell, Settings
from _bench.zero_harm.runs import Run, Shelf
from _bench.zero_harm.workload import jittered
from bftrainer.model.errors import BftError

SET_UP_PATIENCE_S = 300.0
LONGEST_CYCLE_S = 30.0  # clusters side by side begin theirs evenly apart in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """One run to make."""

    settings: Settings
    cell: Cell | None = None  # None: without bftrainer
    jitter: int = 0  # which; 0 submits every job at its instant
    is_again: bool = False  # A', not A

    @property
    def name(self) -> str:
        """Under which the run is kept."""
        kind = f"B {self.cell.name}" if self.cell else ("A2" if self.is_again else "A")
        return f"{self.settings.name} {kind}{f' j{self.jitter}' if self.jitter else ''}"


def controls(cell: Cell, jitters: int) -> tuple[Planned, ...]:
    """Return the runs without bftrainer that a cell is held against, A and A' first."""
    return (
        Planned(settings=cell.settings),
        Planned(settings=cell.settings, is_again=True),
        *(Planned(settings=cell.settings, jitter=n + 1) for n in range(_own(cell, jitters))),
    )


def runs(cell: Cell, jitters: int) -> tuple[Planned, ...]:
    """Return the runs of a cell with bftrainer."""
    return tuple(
        Planned(settings=cell.settings, cell=cell, jitter=n) for n in range(1 + _own(cell, jitters))
    )


def _own(cell: Cell, jitters: int) -> int:
    """Where the cost is the result, one run shows it."""
    return jitters if cell.must_pass or cell.max_lost_cycles is not None else 0


def all_runs(cells: Sequence[Cell], jitters: int) -> tuple[Planned, ...]:
    """Return each run once, in turns: whatever the machine does meanwhile, all kinds see it."""
    found: dict[str, Planned] = {}
    for turn in range(jitters + 2):  # what fewer jitters need comes first
        for kind in (controls, runs):
            for cell in cells:
                for planned in kind(cell, jitters)[turn : turn + 1]:
                    found.setdefault(planned.name, planned)
    return tuple(found.values())


def make(
    stage: Stage, planned: Sequence[Planned], shelf: Shelf, at_once: int
) -> Iterator[tuple[str, str]]:
    """Make the runs that are missing, ``at_once`` side by side; yield those that failed and why.

    Those side by side are set up before any of them starts: sixteen agents that start at
    once are a load that must not fall into somebody else's run.
    """
    missing = []
    for one in planned:
        if shelf.get(one.name) is None:
            missing.append(one)
        else:
            stage.say(f"{one.name}: kept from an earlier call")
    for begin in range(0, len(missing), at_once):
        together = missing[begin : begin + at_once]
        barrier = multiprocessing.Barrier(len(together))
        with ProcessPoolExecutor(len(together), initializer=_share, initargs=(barrier,)) as pool:
            yield from _settle(stage, together, shelf, pool)


def _settle(
    stage: Stage, planned: Sequence[Planned], shelf: Shelf, pool: ProcessPoolExecutor
) -> Iterator[tuple[str, str]]:
    try:
        futures = {
            pool.submit(play, stage, one, turn * LONGEST_CYCLE_S / len(planned)): one.name
            for turn, one in enumerate(planned)
        }
        for done in as_completed(futures):
            run = done.result()
            if isinstance(run, Run):
                shelf.put(run)
            problem = run.problem if isinstance(run, Run) else run
            if problem:
                stage.say(f"{futures[done]} FAILED: {problem}")
                yield futures[done], problem
    except BaseException:
        # Each takes its cluster down when told to end; nothing else would tell it.
        pool.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.terminate()
        raise


def play(stage: Stage, planned: Planned, wait_s: float) -> Run | str:
    """Make one run, or say why not; the jobs of a jittered one come a moment sooner or later.

    The same jobs come to all runs side by side, in phase with backfill: a second at which
    seven clusters start and kill sixteen agents each is one that no real cluster knows. So
    the clusters' cycles begin apart, ``wait_s`` after the first one's.
    """
    time.sleep(wait_s)
    began_s = time.monotonic()
    own = replace(stage, jobs=jittered(stage.jobs, planned.jitter), is_set=_wait_for_all)
    try:
        run = arm.play(own, planned.settings, planned.name, planned.cell)
    except (BenchError, BftError, OSError) as problem:
        _together[0].abort()  # nobody waits for this one
        return str(problem)
    except SystemExit:
        os._exit(1)  # told to end, and the cluster is down: a pool's process would go on
    took_s = time.monotonic() - began_s
    stage.say(f"{planned.name}: makespan {run.makespan_s:.0f} s; done after {took_s:.0f} s")
    return run


_together: list[Barrier] = []  # of this process: shared by all that run side by side


def _share(barrier: Barrier) -> None:
    _together[:] = [barrier]


def _wait_for_all() -> None:
    # Broken: one of them cannot be set up; the others go on.
    with contextlib.suppress(threading.BrokenBarrierError):
        _together[0].wait(SET_UP_PATIENCE_S)
