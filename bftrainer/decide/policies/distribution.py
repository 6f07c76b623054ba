"""Distributes nodes for the simple policies, trainer by trainer or node by node. Pure.

``Handing`` keeps what is free in each class and what each trainer was given, so that a policy only
says which trainer gets how many next: ``room`` is what the rules of the problem still allow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from bftrainer.decide.policies.base import Decided
from bftrainer.model.decision import Term
from milp.answer import NO_MARGINAL, make_allocation
from milp.check import validate
from milp.options import build_options
from milp.pool import view_pool
from milp.problem import Objective, Problem
from milp.tables import rate_at, rate_curve, rates_up_to


class Handing:
    """The pool while it is handed out; trainers by their index j in order of submission.

    A trainer that mixes classes takes nodes of several. Any other one keeps to its home: the class
    it has most nodes of, or the one chosen for it.
    """

    def __init__(self, problem: Problem, *, admits: bool = False, is_spread: bool = False) -> None:
        """Begin with all nodes free.

        Args:
            problem: what is asked.
            admits: whether any trainer may be among the p_jmax, not the first ones only.
            is_spread: whether every trainer has a home from the beginning, and mixes nothing.

        Raises:
            milp.problem.ProblemError: the problem is malformed.
        """
        validate(problem)
        self.problem = problem
        self._seen = problem
        if admits:
            self._seen = replace(problem, p_jmax=len(problem.trainers))
        self.pool = view_pool(self._seen, is_apart=True)
        self.trainers = self.pool.trainers
        self.counts = self.pool.counts()
        self.free = list(self.counts)
        self._split = [[0] * len(self.counts) for _ in self.trainers]
        self._accepted = list(map(_classes_of, self.pool.accepts))
        self._rates: dict[tuple[int, float], float] = {}  # by identity of the curve, and size
        self._largest = self.pool.largest
        if is_spread:
            self._largest = self.pool.largest_of_one
        self._mixes = [mixes and not is_spread for mixes in self.pool.mixes]
        self.home: list[int | None] = []  # None: not chosen
        home_of = self._home_of
        if is_spread:
            home_of = self._spread
        for j in range(len(self.trainers)):
            self.home.append(home_of(j))

    def _home_of(self, j: int) -> int | None:
        """The class it has most nodes of; one that mixes classes has its first as a stand-in."""
        accepted, held_by_class = self.accepted(j), self.pool.held[j]
        if self._mixes[j] and accepted:
            return accepted[0]
        if self.pool.present[j] and accepted:
            return max(accepted, key=held_by_class.__getitem__)
        return None

    def _spread(self, j: int) -> int:
        """The class it has most nodes of, else that with most nodes per trainer at home there."""
        accepted, held_by_class = self.accepted(j) or [0], self.pool.held[j]
        if any(held_by_class):
            return max(accepted, key=held_by_class.__getitem__)
        return max(accepted, key=lambda k: self.counts[k] / (1 + self.home.count(k)))

    def accepted(self, j: int) -> list[int]:
        """Classes that a trainer accepts."""
        return self._accepted[j]

    def size(self, j: int) -> int:
        """Nodes given to a trainer so far."""
        return sum(self._split[j])

    def given(self, j: int) -> list[int]:
        """Nodes given to a trainer so far, by class."""
        return self._split[j]

    def largest(self, j: int) -> int:
        """Most nodes it could have, were it alone."""
        home = self.home[j]
        if home is not None:
            return self._largest(j, home)
        return max([self._largest(j, k) for k in self.accepted(j)], default=0)

    def room(self, j: int) -> int:
        """Most nodes it can have while the others keep theirs; 0 without a home."""
        home = self.home[j]
        if home is None:
            return 0
        if not self._mixes[j]:
            return min(self._largest(j, home), self.free[home] + self._split[j][home])
        available, held_by_class = self._left_for(j), self.pool.held[j]
        n_max = self.trainers[j].n_max
        if self._keeps_all(j, available):
            return min(n_max, sum(available))
        return min(n_max, _common(held_by_class, available))

    def could_have(self, j: int) -> int:
        """Most nodes it can have while the others keep theirs, in any class it may choose."""
        if self.home[j] is not None:
            return self.room(j)
        rooms = [min(self.free[k], self.pool.largest(j, k)) for k in self.accepted(j)]
        return max(rooms, default=0)

    def settle(self, j: int, need: int, preferred: int | None = None) -> bool:
        """Choose a home for a trainer without one; whether it can have ``need`` nodes.

        It is the preferred class or the least contended one, with most free nodes per trainer at
        home there, among those with room.
        """
        if self.home[j] is None:
            fitting = [k for k in self.accepted(j) if self.free[k] >= need]
            if not fitting:
                return False
            least_contended = max(fitting, key=lambda k: self.free[k] / (1 + self.home.count(k)))
            self.home[j] = preferred if preferred in fitting else least_contended
        return self.room(j) >= need

    def take(self, j: int, size: int) -> bool:
        """Let a trainer have ``size`` nodes if there is room; whether there is."""
        if size > self.room(j):
            return False
        home, available = self.home[j], self._left_for(j)
        split = [0] * len(available)
        if home is not None and self._mixes[j]:
            split = self._mixed(j, size, available)
        elif home is not None:
            split[home] = size
        for k, count in enumerate(split):
            self.free[k] += self._split[j][k] - count
        self._split[j] = split
        return True

    def _left_for(self, j: int) -> list[int]:
        """Free nodes that it accepts and its own, by class."""
        pairs = zip(self.free, self._split[j], self.pool.accepts[j], strict=True)
        return [free + its_nodes if accepts else 0 for free, its_nodes, accepts in pairs]

    def _keeps_all(self, j: int, available: Sequence[int]) -> bool:
        """Return whether it can keep all the nodes it has, which one that grows must."""
        held_by_class = self.pool.held[j]
        return _common(held_by_class, available) == len(self.pool.present[j])

    def _mixed(self, j: int, size: int, available: Sequence[int]) -> list[int]:
        """Nodes by class: those it has first, then of the classes with most left."""
        held_by_class, split, need = self.pool.held[j], [0] * len(available), size
        if self._keeps_all(j, available) and size >= len(self.pool.present[j]):
            split, need = list(held_by_class), size - sum(held_by_class)
            pairs = zip(available, held_by_class, strict=True)
            spare = [n_available - n_held for n_available, n_held in pairs]
        else:
            spare = list(map(min, available, held_by_class))
        for k in sorted(range(len(available)), key=lambda k: -spare[k]):
            extra = min(need, spare[k])
            split[k] += extra
            need -= extra
        return split

    def rates(self, j: int) -> list[float]:
        """Samples per second of sizes 0 to the largest, with the fastest batch."""
        curve = rate_curve(self.trainers[j], Objective.THROUGHPUT)
        rates: list[float] = rates_up_to(curve, self.largest(j)).tolist()
        return rates

    def rate(self, j: int, size: float) -> float:
        """Samples per second at a size."""
        key = id(rate_curve(self.trainers[j], Objective.THROUGHPUT)), size
        rate = self._rates.get(key)
        if rate is None:  # trainers of one network have one curve
            curve = rate_curve(self.trainers[j], Objective.THROUGHPUT)
            rate = self._rates[key] = rate_at(curve, size)
        return rate

    def answer(
        self,
        name: str,
        terms: Callable[[int], tuple[Term, ...]] = lambda _: (),
        order: Sequence[int] = (),
        wake_at_s: float | None = None,
    ) -> Decided:
        """Build the answer; its node price is 0, because nothing was priced.

        Args:
            name: of the policy.
            terms: what a trainer's size follows from.
            order: of admission; those with nodes come first. Empty: that of submission.
            wake_at_s: when to ask again; None: at the next event.
        """
        ids = [trainer.trainer_id for trainer in self.trainers]
        in_line = sorted(order, key=lambda j: not self.size(j))
        allocation = make_allocation(
            self._seen,
            self.pool,
            build_options(self._seen, self.pool),
            self._split,
            node_price=0.0,
            solver=name,
        )
        ids_in_line = tuple([ids[j] for j in in_line])
        stopped = dict.fromkeys(ids_in_line[self.problem.p_jmax :], NO_MARGINAL)
        allocation = replace(allocation, marginals={**allocation.marginals, **stopped})
        return Decided(
            allocation=allocation,
            wake_at_s=wake_at_s,
            order=ids_in_line,
            terms={trainer_id: terms(j) for j, trainer_id in enumerate(ids)},
        )


def _common(held_by_class: Sequence[int], available: Sequence[int]) -> int:
    """Return how many of its nodes it can keep, over all classes."""
    return sum(map(min, held_by_class, available))


def _classes_of(accepts: Iterable[bool]) -> list[int]:
    return [k for k, is_accepted in enumerate(accepts) if is_accepted]


def seconds(samples: float, rate: float) -> float:
    """Return how long samples take; 0 for none, infinite at rate 0."""
    if samples <= 0.0:
        return 0.0
    if rate > 0.0:
        return samples / rate
    return math.inf
