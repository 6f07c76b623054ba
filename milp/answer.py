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
from milp.problem import Allocation, Marginal, Problem
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
    if stopped := problem.trainers[problem.p_jmax :]:
        marginals |= dict.fromkeys((trainer.trainer_id for trainer in stopped), NO_MARGINAL)
        values.extend(values_of_stopped(problem))
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


def sizes_of_one(options: Options, pool: PoolView, one: PoolAnswer) -> SizesAnswer:
    """Return the worth of sizes in one kind of units."""
    split, price = [[size] for size in one.sizes.tolist()], one.value_of_one_more - one.value
    values, marginals = _worth(options, pool, split)
    return SizesAnswer(split=split, values=values, marginals=marginals, price=price)


def sizes_of_several(options: Options, pool: PoolView, several: ClassesAnswer) -> SizesAnswer:
    """Return the worth of kinds and sizes."""
    split = several.split.tolist()
    values, marginals = _worth(options, pool, split)
    return SizesAnswer(
        split=split, values=values, marginals=marginals, price=several.price, gap=several.gap
    )


def answer_of_parts(
    problem: Problem, pool: PoolView, split: Split, answers: Sequence[SizesAnswer]
) -> Allocation:
    """Return the allocation of sizes that were found apart; the price is that of the dearest."""
    marginals: dict[str, Marginal] = {}
    for answer in answers:
        marginals |= answer.marginals
    in_order = {t.trainer_id: marginals.get(t.trainer_id, NO_MARGINAL) for t in problem.trainers}
    values = [value for answer in answers for value in answer.values]
    gap = math.fsum([answer.gap for answer in answers])
    return Allocation(
        assignment=place(problem, pool, split),
        objective=math.fsum([*values, *values_of_stopped(problem)]),
        node_price=max([0.0, *(answer.price for answer in answers)]),
        marginals=in_order,
        solver="bounded" if gap > 0 else "exact",
        gap=gap,
    )


def answer_of_one(
    problem: Problem, pool: PoolView, options: Options, one: PoolAnswer, *, solver: str = "exact"
) -> Allocation:
    """Return the allocation of sizes in one class of nodes."""
    price, split = one.value_of_one_more - one.value, [[size] for size in one.sizes.tolist()]
    return make_allocation(problem, pool, options, split, node_price=price, solver=solver)


def answer_of_several(
    problem: Problem, pool: PoolView, options: Options, several: ClassesAnswer
) -> Allocation:
    """Return the allocation of classes and sizes."""
    return make_allocation(
        problem,
        pool,
        options,
        several.split.tolist(),
        node_price=several.price,
        solver="bounded" if several.gap > 0 else "exact",
        gap=several.gap,
    )


def values_of_stopped(problem: Problem) -> list[float]:
    """Return the costs of trainers beyond p_jmax: those that still hold nodes must shrink to 0."""
    stopped = problem.trainers[problem.p_jmax :]
    if not stopped:
        return []
    names = {node.name for node in problem.nodes}
    values: list[float] = []
    for trainer in stopped:
        n_present = sum(name in names for name in trainer.current)
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
    allowed, sizes = options.allowed, [sum(row) for row in split]
    best = of_class = allowed[0]
    if len(allowed) > 1:
        best = allowed.max(axis=0)
        # A trainer without nodes may get its first one of any class.
        classes = [next((k for k, count in enumerate(row) if count), 0) for row in split]
        of_class = allowed[classes, range(len(sizes))]
    now = np.arange(0, best.size, best.shape[1])
    now += np.array(sizes, dtype=np.int64)
    marginals: dict[str, Marginal] = {}
    values = best.take(now).tolist()
    for trainer, size, value, first, larger, smaller, nothing in zip(
        pool.trainers,
        sizes,
        values,
        best[:, 1].tolist(),
        of_class.take(now + 1).tolist(),
        best.take(now - 1).tolist(),  # of size 0: nothing that is read
        best[:, 0].tolist(),
        strict=True,
    ):
        more = larger if size else first
        fewer = nothing if smaller == -math.inf else smaller
        if trainer.sizes and size and (below := trainer.largest_of(size - 1)):
            fewer = float(best[len(marginals), below])
        marginals[trainer.trainer_id] = Marginal(
            gain_of_one_more=None if more == -math.inf else more - value,
            loss_of_one_fewer=value - fewer if size else None,
        )
    return values, marginals
