"""Step records that workers leave behind, and the pauses they show.

Every worker appends one fixed-size record per committed step to a file of its own
(``scripts/workloads/rescale_common.py`` writes them); ``Recorder`` reads what is new,
the functions below turn records into gaps and medians. Called by ``bench_rescale``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

RECORD = struct.Struct("<dqiiii")  # monotonic s, step, generation, size, rank, reserved
FIRST_STEADY = 9  # index of the tenth step of a generation
ENOUGH_STEADY = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One committed step as one worker saw it."""

    at_s: float
    step: int
    generation: int
    size: int
    rank: int


@dataclass(slots=True, kw_only=True)
class History:
    """All steps of one process, oldest first."""

    node: str
    pid: int
    path: Path
    steps: list[Step] = field(default_factory=list)
    read_bytes: int = 0

    def since(self, at_s: float) -> list[Step]:
        """Return the steps committed after ``at_s``."""
        return self.steps[bisect_left(self.steps, at_s, key=lambda s: s.at_s) :]


class Recorder:
    """Reads the record files of a directory as they grow."""

    def __init__(self, directory: Path, what: str = "steps") -> None:
        self.directory = directory
        self._what = what
        self.histories: dict[int, History] = {}

    def poll(self) -> None:
        """Read what the workers have committed since the last call."""
        for path in self.directory.glob(f"*.{self._what}"):
            node, _, pid = path.stem.rpartition("-")
            history = self.histories.setdefault(
                int(pid), History(node=node, pid=int(pid), path=path)
            )
            with path.open("rb") as file:
                file.seek(history.read_bytes)
                data = file.read()
            whole = len(data) - len(data) % RECORD.size
            history.read_bytes += whole
            history.steps += [Step(*r[:5]) for r in RECORD.iter_unpack(data[:whole])]

    def of_generation(self, generation: int) -> dict[int, list[Step]]:
        """Return the steps of a generation by process."""
        steps_of = {}
        for pid, history in self.histories.items():
            steps = [s for s in _newest(history.steps, generation) if s.generation == generation]
            if steps:
                steps_of[pid] = steps
        return steps_of


def _newest(steps: Sequence[Step], generation: int) -> Sequence[Step]:
    """Return the tail of the steps that may belong to ``generation``; they are ordered."""
    return steps[bisect_left(steps, generation, key=lambda s: s.generation) :]


def survivors(histories: Mapping[int, History], generation: int) -> dict[int, tuple[Step, Step]]:
    """Return each survivor's last step before a generation and its first step in it."""
    pairs = {}
    for pid, history in histories.items():
        start = bisect_left(history.steps, generation, key=lambda s: s.generation)
        if 0 < start < len(history.steps) and history.steps[start].generation == generation:
            pairs[pid] = (history.steps[start - 1], history.steps[start])
    return pairs


def durations(steps: Sequence[Step]) -> list[float]:
    """Return how long the steps took, from the tenth on."""
    times = [s.at_s for s in steps]
    return [b - a for a, b in zip(times[FIRST_STEADY - 1 :], times[FIRST_STEADY:], strict=False)]


def steady_by_generation(histories: Mapping[int, History]) -> dict[tuple[int, int], list[float]]:
    """Return the durations of steady steps of rank 0 by (size, generation)."""
    times_s: dict[tuple[int, int], list[float]] = {}
    for history in histories.values():
        start = 0
        while start < len(history.steps):
            first = history.steps[start]
            end = start
            while end < len(history.steps) and history.steps[end].generation == first.generation:
                end += 1
            if first.rank == 0:
                times_s.setdefault((first.size, first.generation), []).extend(
                    durations(history.steps[start:end])
                )
            start = end
    return times_s


def usual_step_s(
    steady: Mapping[tuple[int, int], Sequence[float]], size: int, generation: int
) -> float:
    """Return the median step at a size: of that generation if it lived long enough."""
    step_times_s = steady.get((size, generation), ())
    if len(step_times_s) >= ENOUGH_STEADY:
        return median(step_times_s)
    return median(v for (s, _), values in steady.items() if s == size for v in values)
