"""Drives one trainer through cycles of transitions and measures its pauses.

A ``Plane`` and a ``Recorder`` come in; a list of ``Pause`` per transition goes out.
Called by ``bench_rescale``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from _bench.records import (
    Recorder,
    Step,
    steady_by_generation,
    survivors,
    usual_step_s,
)
from _bench.waiting import BenchError
from tests.support.plane import Plane

KINDS = ("1->2", "2->4", "4->2", "rank 0 leaves", "SIGKILL")
BEFORE_STEPS = 3  # at least so many between two transitions
STEADY_EVERY = 4  # cycles in which generations live long enough to know their usual step
STEADY_STEPS = 16  # enough to know the usual step of a generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What one transition cost the survivor it cost most."""

    kind: str
    generation: int
    size: int
    pause_s: float
    gap_s: float  # between committed steps, or from the kill to the first commit
    step_s: float  # usual step at the new size, subtracted
    reported_s: float  # what the trainer itself reported to the daemon


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mark:
    """A transition that has happened, to be measured when all steps are known."""

    kind: str
    generation: int
    size: int
    killed_s: float | None
    reported_s: float


class Rescaling:
    """Cycles 1 -> 2 -> 4 -> (kill) 3 -> 4 -> (rank 0 leaves) 3 -> 4 -> 2 -> 1."""

    def __init__(self, plane: Plane, records: Path, note: Callable[[str], None]) -> None:
        self._plane = plane
        self._recorder = Recorder(records)
        self._marks: list[_Mark] = []
        self._note = note
        self._victims = itertools.cycle(range(4))

    async def run(self, cycles: int) -> None:
        """Go through the cycles; ``pauses`` then tells what they cost."""
        if len(self._plane.members()) != 1:
            await self._resize(1)
        for cycle in range(cycles):
            # The others take the usual steps from these; a busy machine changes its mind.
            steps = STEADY_STEPS if cycle % STEADY_EVERY == 0 else BEFORE_STEPS
            await self._resize(2, steps=steps, kind="1->2")
            await self._resize(4, steps=steps, kind="2->4")
            await self._kill(steps)
            await self._lose_first(steps)
            await self._resize(4)
            await self._resize(2, steps=steps, kind="4->2")
            await self._resize(1)
            self._note(f"cycle {cycle + 1} of {cycles}")

    def pauses(self) -> list[Pause]:
        """Return the pauses of all transitions so far."""
        self._recorder.poll()
        steady = steady_by_generation(self._recorder.histories)
        return [self._pause(mark, steady) for mark in self._marks]

    # ---- transitions -------------------------------------------------------------------

    async def _resize(self, size: int, *, steps: int = BEFORE_STEPS, kind: str = "") -> None:
        """Grow or shrink to a size; rank 0 stays."""
        held_nodes = [node for _, node in self._plane.members()]
        free = [n for n in self._plane.all_nodes() if n not in held_nodes]
        await self._change((held_nodes + free)[:size], steps, kind)

    async def _lose_first(self, steps: int) -> None:
        await self._change([n for _, n in self._plane.members()[1:]], steps, "rank 0 leaves")

    async def _change(self, nodes: list[str], steps: int, kind: str) -> None:
        before = len(self._plane.rescales())
        self._plane.set_nodes(nodes)
        await self._settled(before, len(nodes), steps, kind, None)

    async def _kill(self, steps: int) -> None:
        """SIGKILL one of four workers; the trainer replaces it by itself."""
        members = self._plane.members()
        before = len(self._plane.rescales())
        victim = members[next(self._victims) % len(members)][0]
        killed_s = self._plane.kill_worker(victim)
        await self._settled(before, len(members) - 1, 1, "SIGKILL", killed_s)
        await self._plane.until(
            lambda: self._plane.rescales()[-1].size == len(members), "the killed one is replaced"
        )
        await self._trained(self._plane.rescales()[-1].generation, len(members), steps)

    async def _settled(
        self, before: int, size: int, steps: int, kind: str, killed_s: float | None
    ) -> None:
        rescales = await self._plane.until(
            lambda: self._plane.rescales()[before:], f"{kind or 'a'} transition to {size}"
        )
        if rescales[0].size != size:
            raise BenchError(f"{kind}: the trainer went to {rescales[0].size}, not to {size}")
        if kind:
            self._marks.append(
                _Mark(
                    kind=kind,
                    generation=rescales[0].generation,
                    size=size,
                    killed_s=killed_s,
                    reported_s=rescales[0].pause_s,
                )
            )
        await self._trained(rescales[0].generation, size, steps)

    async def _trained(self, generation: int, size: int, steps: int) -> None:
        """Wait until every member has done some steps of the generation."""

        def is_trained() -> bool:
            self._recorder.poll()
            steps_of = self._recorder.of_generation(generation)
            return len(steps_of) == size and min(map(len, steps_of.values())) >= steps

        await self._plane.until(is_trained, f"{steps} steps of {size} workers")
        await asyncio.sleep(0)

    # ---- measuring -----------------------------------------------------------------------

    def _pause(self, mark: _Mark, steady: dict[tuple[int, int], list[float]]) -> Pause:
        pairs = survivors(self._recorder.histories, mark.generation).values()
        if not pairs:
            raise BenchError(f"no survivor of {mark.kind} left records")
        gap_s = max(_gap_s(before, after, mark.killed_s) for before, after in pairs)
        step_s = usual_step_s(steady, mark.size, mark.generation)
        return Pause(
            kind=mark.kind,
            generation=mark.generation,
            size=mark.size,
            pause_s=gap_s - step_s,
            gap_s=gap_s,
            step_s=step_s,
            reported_s=mark.reported_s,
        )


def _gap_s(old: Step, new: Step, killed_s: float | None) -> float:
    return new.at_s - (old.at_s if killed_s is None else killed_s)
