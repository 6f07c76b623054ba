"""Several trainers grow by the scaling rule (``scaling_rule``) and compete for the free nodes.

A running trainer keeps its nodes unless the rule takes them back; a waiting one starts with n_min,
in order of submission. Then requests are met one by one, that of the smallest trainer or that which
is worth most per node first. A trainer that was measured makes one move to a size not measured yet
and waits there; one of which nothing is measured is sized by its curve. Used by
``throughput_scaling``, ``utility`` and ``utility_exact``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from bftrainer.decide.policies.base import Context, Decided
from bftrainer.decide.policies.distribution import Handing
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


class Climb:
    """One decision."""

    def __init__(
        self,
        handing: Handing,
        context: Context,
        climbers: Sequence[Climber | None],
        *,
        step: int,
        sizes: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Begin at the present sizes, or others; where ``climbers`` has None the size stays."""
        self._handing, self._climbers, self._step = handing, climbers, step
        self._trainers, self._now_s = handing.trainers, context.now_s
        self._standings = [context.trainers[t.trainer_id] for t in handing.trainers]
        for j in sorted(range(len(climbers)), key=lambda j: climbers[j] is not None):
            size = min(sizes.get(j, len(handing.pool.present[j])), handing.room(j))
            handing.take(j, size if size >= self._trainers[j].n_min else 0)

    def run(self) -> None:
        """Move all."""
        handing, size = self._handing, self._handing.size
        movers = [j for j, climber in enumerate(self._climbers) if climber is not None]
        for j in movers:
            while (goal := self._goal(j)) < size(j):
                handing.take(j, goal)
        for j in movers:
            if not size(j):
                handing.take(j, self._trainers[j].n_min)
        requests = list(filter(None, map(self._request, movers)))
        heapify(requests)
        while requests:
            *_, j, goal = heappop(requests)
            handing.take(j, goal)  # unless others have got the nodes since
            if request := self._request(j):
                heappush(requests, request)

    def answer(
        self, name: str, measure_s: float, terms: Callable[[int], tuple[Term, ...]] | None = None
    ) -> Decided:
        """Build the policy's answer; while sizes are measured, ask again after ``measure_s``."""
        wake_at_s: float | None = None
        for j, standing in enumerate(self._standings):
            if self._handing.size(j) and (standing.points or not standing.has_rates):
                wake_at_s = self._now_s + measure_s
        return self._handing.answer(name, terms or self.terms, wake_at_s=wake_at_s)

    def _request(self, j: int) -> tuple[int, float, int, int, int] | None:
        goal, size = self._goal(j), self._handing.size(j)
        if goal > size:
            return (*self._urgency(j, goal), size, j, goal)
        return None

    def _goal(self, j: int) -> int:
        size, climber = self._handing.size(j), self._climbers[j]
        if not size or climber is None:
            return size
        n_min, n_max, step = self._trainers[j].n_min, self._handing.room(j), self._step
        points = self._known(j, n_max)
        return next_size(size, points, climber.condition, step=step, least=n_min, most=n_max)

    def _known(self, j: int, n_max: int) -> dict[int, MeasuredSize]:
        """Return the measured sizes; if there are none those that the curve tells."""
        if points := self._standings[j].points:
            return {point.size: point for point in points}
        size, n_min, step = self._handing.size(j), self._trainers[j].n_min, self._step
        lower = (max(size - 2 * step, n_min), max(size - step, n_min))
        return by_curve(self._trainers[j], (*lower, size, min(size + step, n_max)))

    def terms(self, j: int) -> tuple[Term, ...]:
        """Return what the size of a trainer follows from, once all have moved."""
        size, n_min, climber = self._handing.size(j), self._trainers[j].n_min, self._climbers[j]
        room = Term("could have", self._handing.room(j), "nodes")
        if not size or climber is None:
            return Term("needs at least", n_min, "nodes"), room
        n_max = self._handing.largest(j)
        points = neighbours(size, self._known(j, n_max), step=self._step, least=n_min, most=n_max)
        return *climber.condition.terms(points), room

    def _urgency(self, j: int, goal: int) -> tuple[int, float]:
        """Return rank and worth of a request; what is not measured yet is estimated."""
        climber, rates = (
            self._climbers[j],
            by_curve(self._trainers[j], (self._handing.size(j), goal)),
        )
        if climber is None or climber.by_size:
            return climber.rank if climber else 0, float(self._handing.size(j))
        return climber.rank, -climber.condition.worth(rates[self._handing.size(j)], rates[goal])
