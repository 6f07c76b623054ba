"""Jobs of the simulated site, and sets of its nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Literal

NodeSet = int


def lowest(some: NodeSet, count: int) -> NodeSet:
    """Return the ``count`` lowest nodes of a set, or all of it."""
    rest = some
    for _ in range(count):
        rest &= rest - 1
        if not rest:
            break
    return some ^ rest


def positions(some: NodeSet) -> Iterator[int]:
    """Yield the numbers of the nodes, ascending."""
    while some:
        bit = some & -some
        yield bit.bit_length() - 1
        some ^= bit


def neighbours(some: NodeSet, count: int) -> NodeSet:
    """Choose as Slurm does without a topology: neighbours in the order of slurm.conf.

    Of the shortest row that is long enough; while there is none, all of the longest. At least
    ``count`` nodes have to be in ``some``.
    """
    chosen = 0
    rows = sorted(_rows(some), key=itemgetter(1), reverse=True)
    for n, (row, length) in enumerate(rows):
        if length >= count:
            enough = [other for other in rows[n:] if other[1] >= count]
            return chosen | lowest(min(enough, key=itemgetter(1))[0], count)
        chosen |= row
        count -= length
    return chosen


def _rows(some: NodeSet) -> list[tuple[NodeSet, int]]:
    rows = []
    while some:
        row = some & ~(some + (some & -some))
        rows.append((row, row.bit_count()))
        some ^= row
    return rows


Kind = Literal["sbatch", "srun", "immediate"]  # srun: tried at once; immediate: then or never


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job, or one task of an array, as its user submits it."""

    number: int
    submit_s: float
    n_nodes: int
    limit_s: float
    run_s: float  # it ends by itself after this, or at its limit
    priority: float = 0.0
    user: str = "u"
    kind: Kind = "sbatch"
    array: int = 0  # tasks of the same array have the same number; 0: none
    held_by: str = ""  # a limit for which Slurm never starts it: its reason in squeue

    def __deepcopy__(self, _memo: object) -> JobSpec:
        return self


@dataclass(slots=True, eq=False, kw_only=True)
class SiteJob:
    """A job in the queue or on nodes."""

    spec: JobSpec
    start_s: float | None = None
    end_s: float | None = None
    nodes: NodeSet = 0
    by_backfill: bool = False
    is_refused: bool = False  # immediate, and there was no room
    reason: str = "None"
    planned_s: float | None = None  # backfill's plan, as squeue shows it
    planned: NodeSet = 0
    preempted_in: int = -1  # the last backfill cycle that preempted for it
    key: tuple[float, float, int] = field(init=False)

    def __post_init__(self) -> None:
        self.key = (-self.spec.priority, self.spec.submit_s, self.spec.number)

    @property
    def is_eligible(self) -> bool:
        """Return whether Slurm would start it if there was room."""
        return not self.spec.held_by

    @property
    def ends_by_s(self) -> float:
        """The time at which a running job reaches its time limit."""
        return math.inf if self.start_s is None else self.start_s + self.spec.limit_s


@dataclass(slots=True, eq=False, kw_only=True)
class Preemptable:
    """A one-node job of the lowest partition: a pilot, or what a user submits there."""

    name: str
    limits_s: tuple[float, ...]  # tried in this order; a pilot may be two jobs
    node: NodeSet = 0  # the one it asks for; 0: any
    run_s: float = math.inf
    submit_s: float = 0.0
    start_s: float | None = None
    limit_s: float = 0.0  # with which it started
    at: NodeSet = 0  # where it runs
    is_cancelled: bool = False
