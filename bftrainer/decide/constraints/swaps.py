"""Pilots of one user whose node goes to a trainer of another. Pure.

Where pilots run as the submitting user (policy ``run_as``), an agent serves trainers of its own
user only. A node that goes to a trainer of another user is a *swap*: its pilot is released once
no trainer trains there, and one of the other user is requested. Its price is the work that the
joining trainer misses, because that node can join only when the new agent has connected and it is
warm. Until then it trains on the others, i nodes, and where some of those join earlier, it pauses
once more:

    (O_j(s) - O_j(i)) min(swap_s, T_fwd - warm_up_s)  +  O_j(i) R_up if i > C_j

Two answers are compared by their worth less the price of their swaps: the optimum without the
price, and the optimum if every joining node were a swap. The first is also a bound on every
answer, so ``Allocation.gap`` says what a better one could gain. At the same work done the price
saves 12 to 22% of swaps of 41 s, and 1 to 6% of swaps of 6 s (docs/adr/0030-many-users.md).

From a pilot's release until its node is free, that node counts as given to its trainer
(``under_way``): without that, each decision in between would release one more pilot for it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import ClassVar

from bftrainer.decide.constraints.chain import Ask, Constraint
from bftrainer.decide.policies.base import Decided
from bftrainer.model.decision import DecisionInput, Ends, Memory, Pool, Swap
from milp.problem import Allocation, Problem, names_of
from milp.worth import allocation_value, rate

SUBMIT_S = 1.0  # a poll shows the free node, sbatch, and the main scheduler's pass
TIMES = 3.0  # a swap lasts at most so many times what it usually takes
START_GUESS_S = 3.0  # of an agent, until one was measured


def swap_s(ends: Ends) -> float:
    """Return the time in seconds from a pilot's release until another's agent connects."""
    end_s, start_s = median(ends.took_s or (0.0,)), median(ends.joined_s or (START_GUESS_S,))
    return end_s + SUBMIT_S + start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The users of pilots and trainers."""

    pilots: Mapping[str, str]  # node -> user of its pilot; nodes that any user may get are missing
    trainers: Mapping[str, str]  # trainer -> user

    def swaps(self, assignment: Mapping[str, str]) -> list[str]:
        """Return the nodes of pilots of another user than their trainer's, sorted."""
        nodes = assignment.keys() & self.pilots.keys()
        return sorted([node for node in nodes if self.is_swap(node, assignment[node])])

    def is_swap(self, node: str, trainer_id: str) -> bool:
        """Return whether the node's pilot would have to be another user's."""
        return self.pilots.get(node, self.trainers[trainer_id]) != self.trainers[trainer_id]


def owners_of(pool: Pool, given: DecisionInput) -> Owners:
    """Return the owners; no pilots: one user runs all of them."""
    pilots: dict[str, str] = {}
    for node in pool.nodes:
        if node.user:
            pilots[node.name] = node.user
    trainers: dict[str, str] = {}
    if pilots:
        for record in given.trainers:
            trainers[record.trainer_id] = record.spec.user
    return Owners(pilots=pilots, trainers=trainers)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSwaps(Constraint[Problem, Decided]):
    """An answer pays for the pilots that it has exchanged between users."""

    owners: Owners
    swap_s: float  # that an exchange takes
    name: ClassVar[str] = "priced-swaps"
    in_words: ClassVar[str] = "prices of nodes that go from one user to another (run_as)"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Return the better of the two answers."""
        best = ask(problem)
        if not self.owners.swaps(best.allocation.assignment):
            return best
        dearer = tuple([replace(t, warm_up_s=t.warm_up_s + self.swap_s) for t in problem.trainers])
        careful = ask(replace(problem, trainers=dearer))
        worth = allocation_value(problem, careful.allocation.assignment)
        careful = replace(careful, allocation=replace(careful.allocation, objective=worth))
        best_worth = _worth(best.allocation, problem, self.owners, self.swap_s)
        careful_worth = _worth(careful.allocation, problem, self.owners, self.swap_s)
        better, worth = careful, careful_worth
        if best_worth >= careful_worth:
            better, worth = best, best_worth
        gap = max(0.0, best.allocation.objective + best.allocation.gap - worth)
        return replace(better, allocation=replace(better.allocation, gap=gap))


def _worth(allocation: Allocation, problem: Problem, owners: Owners, cost_s: float) -> float:
    """Return the worth of an allocation less the price of its swaps."""
    assignment = allocation.assignment
    swaps = Counter([assignment[node] for node in owners.swaps(assignment)])
    in_pool, sizes = set(names_of(problem.nodes)), allocation.unit_sizes(problem)
    prices = []
    for trainer in problem.trainers:
        if late := swaps[trainer.trainer_id]:
            before, size = len(in_pool.intersection(trainer.current)), sizes[trainer.trainer_id]
            without = max(before, trainer.largest_of(size - late))
            missed_s = min(cost_s, max(0.0, problem.t_fwd_s - trainer.warm_up_s))
            rate_before = rate(trainer, without, problem.objective)
            rate_after = rate(trainer, size, problem.objective)
            again = 0.0
            if without > before:
                again = rate_before * trainer.rescale_up_s
            # Where more nodes are slower, a swap that delays them is no gain: they need not come.
            prices.append(max(0.0, (rate_after - rate_before) * missed_s + again))
    return allocation.objective - math.fsum(prices)


def under_way(memory: Memory, pool: Pool, now_s: float) -> dict[str, Swap]:
    """Return the swaps whose pilot has been released and whose node is not free yet."""
    swaps_under_way = dict(memory.swaps)
    for node in pool.nodes:
        swaps_under_way.pop(node.name, None)
    for name, swap in memory.swaps.items():
        if now_s >= swap.until_s:
            swaps_under_way.pop(name, None)
    return swaps_under_way


def noted(memory: Memory, pool: Pool, begun: Mapping[str, str], now_s: float) -> dict[str, Swap]:
    """Return the swaps under way, and those that begin now (node -> trainer)."""
    until_s = now_s + TIMES * swap_s(memory.ends)  # later, the node has gone elsewhere
    swaps = under_way(memory, pool, now_s)
    for node, owner in begun.items():
        swaps[node] = Swap(trainer_id=owner, until_s=until_s)
    return swaps


def split(
    assignment: Mapping[str, str], owners: Owners, held: Mapping[str, str], coming: Iterable[Swap]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the assignment without its swaps, and the swaps.

    For each node that is ``coming`` to a trainer, one of its swaps less is made: that node stays
    with the trainer that has ``held`` it, if it is still there.
    """
    awaited = Counter(swap.trainer_id for swap in coming)
    staying, swapped = dict(assignment), dict[str, str]()
    if not owners.pilots:
        return staying, swapped
    for node in owners.swaps(assignment):
        trainer_id = staying.pop(node)
        if not awaited[trainer_id]:
            swapped[node] = trainer_id
            continue
        awaited[trainer_id] -= 1
        if held.get(node) in owners.trainers:
            staying[node] = held[node]
    return staying, swapped
