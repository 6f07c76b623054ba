"""Several trainers grow by the scaling rule (``scaling_rule``) and compete for the free nodes.

A running trainer keeps its nodes unless the rule takes them back; a waiting one starts with n_min,
in order of submission. Then requests are met one by one, that of the smallest trainer or that which
is worth most per node first. A trainer that was measured makes one move to a size not measured yet
and waits there; one of which nothing is measured is sized by its curve. Used by
``throughput_scaling``, ``utility`` and ``utility_exact``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from bftrainer.decide.policies.base import Context, Standing
from bftrainer.decide.policies.distribution import ClassShares
from bftrainer.decide.policies.scaling_rule import Condition, neighbours, next_size
from bftrainer.decide.throughput.fit import MeasuredSize
from bftrainer.model.decision import Term
from milp.problem import ProblemTrainer
from milp.worth import curve_at

SLOWEST = 1e-9  # samples per second: no rate is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Climber:
    """A trainer that climbs."""

    condition: Condition
    rank: int = 0  # requests of a lower rank are met first, whatever they are worth
    by_size: bool = False  # its request is worth more, the smaller it is


def by_curve(trainer: ProblemTrainer, sizes: Iterable[int]) -> dict[int, MeasuredSize]:
    """Return what the curve says of some sizes."""
    return {n: MeasuredSize(n, max(curve_at(trainer.curve, n), SLOWEST), 0.0) for n in sizes}


def wake_at_s(context: Context, sizes: Mapping[str, int], after_s: float) -> float | None:
    """Return when to look at measurements again; None: no size is known by measurements."""
    measured = (context.trainers[name] for name in sizes)
    if any(one.points or not one.has_rates for one in measured):
        return context.now_s + after_s
    return None


class Climb:
    """One decision."""

    def __init__(
        self,
        shares: ClassShares,
        standings: Mapping[str, Standing],
        climbers: Sequence[Climber | None],
        *,
        step: int,
        sizes: Sequence[int],
    ) -> None:
        """Begin at some sizes; where ``climbers`` has None the size stays."""
        self._shares, self._climbers, self._step = shares, climbers, step
        self._trainers = shares.pool.trainers
        self._standings = [standings[t.trainer_id] for t in self._trainers]
        self._free = list(shares.pool.counts())
        self.sizes = [0] * len(climbers)
        for j in sorted(range(len(sizes)), key=lambda j: climbers[j] is not None):
            size = min(sizes[j], self._most(j))
            self._set(j, size if size >= self._trainers[j].n_min else 0)

    def run(self) -> list[int]:
        """Return the sizes by trainer."""
        movers = [j for j, climber in enumerate(self._climbers) if climber is not None]
        for j in movers:
            while (goal := self._goal(j)) < self.sizes[j]:
                self._set(j, goal)
        for j in movers:
            n_min = self._trainers[j].n_min
            if not self.sizes[j] and n_min <= self._most(j):
                self._set(j, n_min)
        requests = [request for j in movers if (request := self._request(j))]
        heapify(requests)
        while requests:
            *_, j, goal = heappop(requests)
            if goal <= self._most(j):  # else others have got the nodes since
                self._set(j, goal)
            if request := self._request(j):
                heappush(requests, request)
        return self.sizes

    def _request(self, j: int) -> tuple[int, float, int, int, int] | None:
        goal = self._goal(j)
        if goal <= self.sizes[j]:
            return None
        return (*self._urgency(j, goal), self.sizes[j], j, goal)

    def _set(self, j: int, size: int) -> None:
        self._free[self._shares.classes[j]] -= size - self.sizes[j]
        self.sizes[j] = size

    def _most(self, j: int) -> int:
        """Return the largest size that trainer j can have now."""
        free = self._free[self._shares.classes[j]]
        return min(self._shares.largest(j), self.sizes[j] + free)

    def _goal(self, j: int) -> int:
        size, climber = self.sizes[j], self._climbers[j]
        if not size or climber is None:
            return size
        least, most, step = self._trainers[j].n_min, self._most(j), self._step
        known = self._known(j, most)
        return next_size(size, known, climber.condition, step=step, least=least, most=most)

    def _known(self, j: int, most: int) -> dict[int, MeasuredSize]:
        """Return the measured sizes; if there are none those that the curve tells."""
        if points := self._standings[j].points:
            return {point.size: point for point in points}
        size, least, step = self.sizes[j], self._trainers[j].n_min, self._step
        lower = (max(size - 2 * step, least), max(size - step, least))
        return by_curve(self._trainers[j], (*lower, size, min(size + step, most)))

    def terms(self, j: int) -> tuple[Term, ...]:
        """Return what the size of a trainer follows from, once all have moved."""
        size, least, climber = self.sizes[j], self._trainers[j].n_min, self._climbers[j]
        room = Term("could have", self._most(j), "nodes")
        if not size or climber is None:
            return Term("needs at least", least, "nodes"), room
        most = self._shares.largest(j)
        points = neighbours(size, self._known(j, most), step=self._step, least=least, most=most)
        return *climber.condition.terms(points), room

    def _urgency(self, j: int, goal: int) -> tuple[int, float]:
        """Return rank and worth of a request; what is not measured yet is estimated."""
        climber, found = self._climbers[j], by_curve(self._trainers[j], (self.sizes[j], goal))
        if climber is None or climber.by_size:
            return climber.rank if climber else 0, float(self.sizes[j])
        return climber.rank, -climber.condition.worth(found[self.sizes[j]], found[goal])
