"""Turns sizes into an Allocation: nodes, objective, price of a node, marginal values.

Takes the sizes by class that a solver or a simple policy chose; called by both, so that
every policy's answer is worth the same thing in the same unit: objective units (those
of O_j) times seconds, over t_fwd_s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milp.classes import ClassesAnswer
from milp.exact.dual import PoolAnswer
from milp.options import Options
from milp.placement.place import place
from milp.pool import PoolView
from milp.problem import Allocation, Marginal, Problem, ids_of, names_of
from milp.tables import value_table

NO_MARGINAL = Marginal(gain_of_one_more=None, loss_of_one_fewer=None)

Split = Sequence[Sequence[int]]  # [j][k]: nodes of class k for a trainer that may run


def make_allocation(
    problem: Problem,
    pool: PoolView,
    options: Options,
    split: Split,
    *,
    node_price: float,
    solver: str = "exact",
    gap: float = 0.0,
) -> Allocation:
    """Place the nodes and put the numbers beside them; trainers that may not run get none."""
    values, marginals = _worth(options, pool, split)
    marginals |= dict.fromkeys(ids_of(problem.trainers[problem.p_jmax :]), NO_MARGINAL)
    values += values_of_stopped(problem)
    return Allocation(
        assignment=place(problem, pool, split),
        objective=math.fsum(values),
        # One node more never hurts; what float noise says against that is cut off.
        node_price=max(node_price, 0.0),
        marginals=marginals,
        solver=solver,
        gap=gap,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesAnswer:
    """Sizes of trainers that compete with each other alone, and what they are worth."""

    split: Split
    values: list[float]  # [j]
    marginals: dict[str, Marginal]
    price: float
    gap: float = 0.0


def sizes_of_one(options: Options, pool: PoolView, answer: PoolAnswer) -> SizesAnswer:
    """Return the worth of sizes in one kind of units."""
    split = answer.sizes[:, None].tolist()
    values, marginals = _worth(options, pool, split)
    price = answer.value_of_one_more - answer.value
    return SizesAnswer(split=split, values=values, marginals=marginals, price=price)


def sizes_of_several(options: Options, pool: PoolView, answer: ClassesAnswer) -> SizesAnswer:
    """Return the worth of kinds and sizes."""
    split = answer.split.tolist()
    values, marginals = _worth(options, pool, split)
    return SizesAnswer(
        split=split, values=values, marginals=marginals, price=answer.price, gap=answer.gap
    )


def answer_of_parts(
    problem: Problem, pool: PoolView, split: Split, answers: Sequence[SizesAnswer]
) -> Allocation:
    """Return the allocation of sizes that were found apart; the price is that of the dearest."""
    # In the order of the problem; those that may not run have none.
    marginals = dict.fromkeys(ids_of(problem.trainers), NO_MARGINAL)
    values: list[float] = []
    price = 0.0
    for answer in answers:
        marginals.update(answer.marginals)
        values += answer.values
        price = max(price, answer.price)
    values += values_of_stopped(problem)
    gap = math.fsum([answer.gap for answer in answers])
    return Allocation(
        assignment=place(problem, pool, split),
        objective=math.fsum(values),
        node_price=price,
        marginals=marginals,
        solver=_solver_of(gap),
        gap=gap,
    )


def answer_of_one(
    problem: Problem, pool: PoolView, options: Options, answer: PoolAnswer, *, solver: str = "exact"
) -> Allocation:
    """Return the allocation of sizes in one class of nodes."""
    split, price = answer.sizes[:, None].tolist(), answer.value_of_one_more - answer.value
    return make_allocation(problem, pool, options, split, node_price=price, solver=solver)


def answer_of_several(
    problem: Problem, pool: PoolView, options: Options, answer: ClassesAnswer
) -> Allocation:
    """Return the allocation of classes and sizes."""
    return make_allocation(
        problem,
        pool,
        options,
        answer.split.tolist(),
        node_price=answer.price,
        solver=_solver_of(answer.gap),
        gap=answer.gap,
    )


def _solver_of(gap: float) -> str:
    return "bounded" if gap > 0 else "exact"


def values_of_stopped(problem: Problem) -> list[float]:
    """Return the costs of trainers beyond p_jmax: those that still hold nodes must shrink to 0."""
    stopped = problem.trainers[problem.p_jmax :]
    if not stopped:
        return []
    pool = set(names_of(problem.nodes))
    values: list[float] = []
    for trainer in stopped:
        n_present = len(pool.intersection(trainer.current))
        if n_present:
            table = value_table(
                trainer, n_present, 0, t_fwd_s=problem.t_fwd_s, objective=problem.objective
            )
            values.append(float(table[0]))
    return values


def _worth(
    options: Options, pool: PoolView, split: Split
) -> tuple[list[float], dict[str, Marginal]]:
    """By trainer that may run: what its size is worth, and one node more and one fewer.

    All others unchanged. One fewer than n_min is 0; one more than 0 is no size when
    n_min > 1: None. Of a set of sizes one fewer is the next smaller of them.
    """
    sizes = list(map(sum, split))
    best = of_class = options.allowed[0]  # [j, n]
    if len(options.allowed) > 1:
        best = options.allowed.max(axis=0)
        classes = list(map(_first_class, split))
        of_class = options.allowed[classes, range(len(sizes))]
    now = np.arange(0, best.size, best.shape[1])
    now += np.array(sizes, dtype=np.int64)
    marginals: dict[str, Marginal] = {}
    values = best.take(now).tolist()
    # Columns at once and plain numbers in the loop: every decision pays for each trainer here.
    for trainer, size, value, value_of_first, value_above, value_below, value_of_none in zip(
        pool.trainers,
        sizes,
        values,
        best[:, 1].tolist(),
        of_class.take(now + 1).tolist(),
        best.take(now - 1).tolist(),  # of size 0: nothing that is read
        best[:, 0].tolist(),
        strict=True,
    ):
        gain = loss = None
        if not size:
            if value_of_first != -math.inf:
                gain = value_of_first - value
        else:
            if value_above != -math.inf:
                gain = value_above - value
            value_of_fewer = value_below
            if value_below == -math.inf:
                value_of_fewer = value_of_none
            if trainer.sizes and (size_below := trainer.largest_of(size - 1)):
                value_of_fewer = float(best[len(marginals), size_below])
            loss = value - value_of_fewer
        marginals[trainer.trainer_id] = Marginal(gain_of_one_more=gain, loss_of_one_fewer=loss)
    return values, marginals


def _first_class(counts: Sequence[int]) -> int:
    """Return the class a trainer has nodes of; 0 without any, as its first may be of any class."""
    return next((k for k, count in enumerate(counts) if count), 0)
