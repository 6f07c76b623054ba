"""Takes a training through grows, shrinks and losses and measures its pauses by its steps.

A ``Bed`` (our control plane with one runtime, or another launcher) comes in; a list of
``Gap`` goes out. Nothing is asked of a training but a record of every step, so that all
runtimes are measured alike, whether their processes survive or not. Called by
``bench_runtimes``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from _bench.records import FIRST_STEADY, History, Recorder, Step
from _bench.waiting import BenchError, wait_until_async

GROW, SHRINK, FIRST_LEAVES, LOSS = "grow", "shrink", "rank 0 leaves", "loss"
KINDS = (GROW, SHRINK, FIRST_LEAVES, LOSS)
SMALL, LARGE = 2, 3  # the two sizes
STEPS = 20  # at least so many at a size, to know its usual step
TIMEOUT_S = 90.0
POLL_S = 0.02


class Bed(Protocol):
    """What can be resized."""

    async def resize(self, size: int) -> None:
        """Ask for a size; the first member stays, the newest goes."""

    async def lose_first(self) -> None:
        """Ask for one node less, without the first member's."""

    async def kill_one(self) -> float:
        """SIGKILL the newest member, whose node is lost with it; when, monotonic."""

    def trouble(self) -> str:
        """Why it cannot go on, "" while it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """One change of size, as the steps show it."""

    kind: str
    pause_s: float  # without training, less the usual step at the new size
    step_s: float  # that step
    lost_steps: int  # done again


class Cycles:
    """2 → 3 → 2 → 3 → (rank 0 leaves) 2 → 3 → (SIGKILL) 2, as often as asked."""

    def __init__(self, bed: Bed, records: Path, note: Callable[[str], None]) -> None:
        self._bed = bed
        self._recorder = Recorder(records)
        self._note = note
        self._gaps: list[Gap] = []

    @property
    def gaps(self) -> list[Gap]:
        """What has been measured so far."""
        return list(self._gaps)

    async def run(self, cycles: int) -> None:
        """Go through the cycles."""
        await self._bed.resize(SMALL)
        await self._trained(SMALL, 0.0)
        for cycle in range(cycles):
            for kind, act in (
                (SHRINK, lambda: self._bed.resize(SMALL)),
                (FIRST_LEAVES, self._bed.lose_first),
                (LOSS, self._bed.kill_one),
            ):
                await self._change(GROW, lambda: self._bed.resize(LARGE), LARGE)
                await self._change(kind, act, SMALL)
            self._note(f"cycle {cycle + 1} of {cycles}")

    async def _change(self, kind: str, act: Callable[[], object], size: int) -> None:
        self._recorder.poll()
        before = {h.pid: len(h.steps) for h in self._recorder.histories.values()}
        asked_s = time.monotonic()
        killed_s = await act()  # type: ignore[misc]  # an awaitable of None or of the instant
        await self._trained(size, asked_s)
        histories = self._recorder.histories
        found = gap(histories, before, size, killed_s if kind == LOSS else None)
        self._gaps.append(
            Gap(
                kind=kind,
                pause_s=found[0] - (step_s := usual_step_s(histories.values(), size)),
                step_s=step_s,
                lost_steps=found[1],
            )
        )

    async def _trained(self, size: int, asked_s: float) -> None:
        """Wait until as many workers have done some steps at the size."""

        def looked() -> bool:
            if trouble := self._bed.trouble():
                raise BenchError(trouble)
            return self._is_trained(size, asked_s)

        await wait_until_async(
            looked, f"training at size {size}", patience_s=TIMEOUT_S, interval_s=POLL_S
        )

    def _is_trained(self, size: int, asked_s: float) -> bool:
        self._recorder.poll()
        counts = [
            sum(1 for s in h.since(asked_s) if s.size == size)
            for h in self._recorder.histories.values()
        ]
        return sum(1 for count in counts if count >= STEPS) >= size


def gap(
    histories: Mapping[int, History], before: Mapping[int, int], size: int, killed_s: float | None
) -> tuple[float, int]:
    """Return the time without training around a change and how many steps it cost.

    From the last step of anybody at the old size (from the kill, if it is given) to the
    moment when everybody has done a step at the new one.

    Args:
        histories: all steps, by process.
        before: how many steps of each process there were when the change was asked for.
        size: the new one.
        killed_s: when a member was killed.
    """
    firsts: list[Step] = []
    for pid, history in histories.items():
        new = [s for s in history.steps[before.get(pid, 0) :] if s.size == size]
        firsts += new[:1]
    start_s = min(s.at_s for s in firsts)
    olds = [s for h in histories.values() for s in h.steps if s.at_s < start_s]
    last = max(olds, key=lambda s: s.at_s)
    lost = max(0, max(s.step for s in olds) + 1 - min(s.step for s in firsts))
    end_s = max(s.at_s for s in firsts)
    return end_s - (last.at_s if killed_s is None else killed_s), lost


def usual_step_s(histories: Iterable[History], size: int) -> float:
    """Return the median step at a size, from the tenth of each stretch on."""
    found: list[float] = []
    for history in histories:
        stretch: list[float] = []
        for step in history.steps:
            if step.size != size:
                stretch = []
                continue
            stretch.append(step.at_s)
            if len(stretch) > FIRST_STEADY:
                found.append(stretch[-1] - stretch[-2])
    return median(found)
