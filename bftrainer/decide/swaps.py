"""Nodes that move between users: another user's pilot must take the node, which has a price.

Where pilots run as the submitting user (policy ``run_as``), an agent serves trainers of its own
user only. A node that goes to a trainer of another user is a *swap*: its pilot is released once
nobody trains there, and one of the other user is requested. Its price is the work that the
joining trainer misses until the new agent connects, as for a warm-up (``milp.problem``):

    O_j(s) / s * min(swap_s, T_fwd - warm_up_s)

Two answers are compared by their worth less the price of their swaps: the optimum without the
price, and the optimum if every joining node were a swap. The first is also a bound on every
answer, so ``Allocation.gap`` says what a better one could gain. At the same work done the price
saves 12 to 22% of swaps of 41 s, and 1 to 6% of swaps of 6 s (docs/adr/0030-many-users.md).
Called by ``allocating``. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from bftrainer.decide.policies.base import Decided
from bftrainer.decide.pool import Pool
from bftrainer.model.decision import DecisionInput, Ends
from milp.problem import Allocation, Problem
from milp.worth import allocation_value, rate

SUBMIT_S = 1.0  # a poll shows the free node, sbatch, and the main scheduler's pass
START_GUESS_S = 3.0  # of an agent, until one was measured


def swap_s(ends: Ends) -> float:
    """Return the time in seconds from a pilot's release until another's agent connects."""
    end_s, start_s = median(ends.took_s or (0.0,)), median(ends.joined_s or (START_GUESS_S,))
    return end_s + SUBMIT_S + start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Whose pilots and whose trainers there are."""

    pilots: Mapping[str, str]  # node -> user of its pilot; nodes that any user may get are missing
    trainers: Mapping[str, str]  # trainer -> user

    def swaps(self, assignment: Mapping[str, str]) -> list[str]:
        """Return the nodes of pilots of another user than their trainer's, sorted."""
        known = assignment.keys() & self.pilots.keys()
        return sorted([node for node in known if self.is_swap(node, assignment[node])])

    def is_swap(self, node: str, trainer_id: str) -> bool:
        """Whether the node's pilot would have to be another user's."""
        return self.pilots.get(node, self.trainers[trainer_id]) != self.trainers[trainer_id]


def owners_of(pool: Pool, given: DecisionInput) -> Owners:
    """Return the owners; no pilots: one user runs all of them."""
    pilots = {node.name: node.user for node in pool.nodes if node.user}
    trainers = {r.trainer_id: r.spec.user for r in given.trainers} if pilots else {}
    return Owners(pilots=pilots, trainers=trainers)


def cheapest(
    problem: Problem, answer: Callable[[Problem], Decided], owners: Owners, cost_s: float
) -> Decided:
    """Return the better of the two answers.

    Args:
        problem: of this decision.
        answer: of the policy to a problem.
        owners: of its nodes and trainers.
        cost_s: of a swap.
    """
    best = answer(problem)
    if not owners.swaps(best.allocation.assignment):
        return best
    dearer = tuple([replace(t, warm_up_s=t.warm_up_s + cost_s) for t in problem.trainers])
    careful = answer(replace(problem, trainers=dearer))
    worth = allocation_value(problem, careful.allocation.assignment)
    careful = replace(careful, allocation=replace(careful.allocation, objective=worth))
    worths = [_worth(one.allocation, problem, owners, cost_s) for one in (best, careful)]
    gap = max(0.0, best.allocation.objective + best.allocation.gap - max(worths))
    chosen = best if worths[0] >= worths[1] else careful
    return replace(chosen, allocation=replace(chosen.allocation, gap=gap))


def _worth(allocation: Allocation, problem: Problem, owners: Owners, cost_s: float) -> float:
    """Return the worth of an allocation less the price of its swaps."""
    trainers, sizes = {t.trainer_id: t for t in problem.trainers}, allocation.sizes()
    prices = []
    for node in owners.swaps(allocation.assignment):
        trainer = trainers[allocation.assignment[node]]
        size = sizes[trainer.trainer_id]
        missed_s = min(cost_s, max(0.0, problem.t_fwd_s - trainer.warm_up_s))
        prices.append(rate(trainer, size, problem.objective) / size * missed_s)
    return allocation.objective - math.fsum(prices)


def split(assignment: Mapping[str, str], owners: Owners) -> tuple[dict[str, str], dict[str, str]]:
    """Return the assignment without its swaps, and the swaps."""
    swapped = {node: assignment[node] for node in owners.swaps(assignment)} if owners.pilots else {}
    return {n: t for n, t in assignment.items() if n not in swapped}, swapped
