"""Shared by the simple policies: chooses a class of nodes per trainer, and builds the answer.

Used by equal_share, fcfs_greedy and no_rescale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bftrainer.decide.policies.base import Decided
from bftrainer.model.terms import Term
from milp.answer import make_allocation
from milp.options import build_options
from milp.pool import PoolView, view_pool
from milp.problem import Allocation, Problem
from milp.validate import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShares:
    """The pool, with a class chosen for each trainer that may run."""

    problem: Problem
    pool: PoolView
    classes: tuple[int, ...]

    def largest(self, j: int) -> int:
        """Largest size of trainer j if it were alone in its class."""
        return self.pool.largest_of_one(j, self.classes[j])

    def allocation(self, sizes: Sequence[int], name: str) -> Allocation:
        """Build the answer; its node price is 0, because nothing was priced."""
        options = build_options(self.problem, self.pool)
        return make_allocation(
            self.problem,
            self.pool,
            options,
            sizes=sizes,
            classes=self.classes,
            node_price=0.0,
            solver=name,
        )

    def by_id(self, sizes: Sequence[int]) -> dict[str, int]:
        """Return the sizes of those that have any."""
        return {t.trainer_id: n for t, n in zip(self.pool.trainers, sizes, strict=True) if n}

    def answer(
        self,
        sizes: Sequence[int],
        name: str,
        terms: Callable[[int], tuple[Term, ...]],
        wake_at_s: float | None = None,
    ) -> Decided:
        """Build the policy's answer; ``terms``: what a trainer's size follows from."""
        return Decided(
            allocation=self.allocation(sizes, name),
            wake_at_s=wake_at_s,
            terms={t.trainer_id: terms(j) for j, t in enumerate(self.pool.trainers)},
        )


def share_out(problem: Problem) -> ClassShares:
    """Choose a class per trainer: the one it has nodes of, else the least contended it accepts.

    Least contended: most nodes per trainer, counting those that already chose it.
    """
    validate(problem)
    pool = view_pool(problem)
    counts = pool.counts()
    chosen: list[int] = []
    for j, held in enumerate(pool.held):
        accepted = [k for k in range(len(counts)) if pool.accepts[j][k]]
        if sum(held):
            chosen.append(max(accepted or [0], key=lambda k: held[k]))
        else:
            chosen.append(max(accepted or [0], key=lambda k: counts[k] / (1 + chosen.count(k))))
    return ClassShares(problem=problem, pool=pool, classes=tuple(chosen))
