"""Gavel's max-min fairness: the smallest normalised throughput is made as large as possible.

Source: Narayanan et al., "Heterogeneity-aware cluster scheduling policies" (OSDI'20), sections 3.1
and 4.1. A trainer's throughput is divided by that of an equal share. The paper gives trainers of
fixed size shares of time on each type of node (``max_min_time_shares``). Here the shares choose the
class of trainers that have none, and the sizes inside a class are raised, always the lowest
throughput first. A trainer is equally fast on all classes that it accepts, as everywhere in this
project.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing
from bftrainer.decide.policies.greedy_steps import (
    Step,
    admit,
    fair_sizes,
    fill,
    next_rise,
    terms_of,
)
from bftrainer.model.decision import Term
from milp.highs import new_highs
from milp.problem import Problem, ProblemError

SLACK = 1e-9  # of the smallest ratio, where the others are raised
DIGITS = 6  # of a share of time: equal ones are equal in every build of HiGHS


def max_min_time_shares(
    rates: Sequence[Sequence[float]], sizes: Sequence[float], counts: Sequence[int]
) -> list[list[float]]:
    """Return the share of time that each trainer has on each type of node.

    A linear program: the shares of a trainer add up to at most 1, those of a type, each times the
    size of its trainer, to at most the number of its nodes. A trainer's ratio is its throughput
    over the mean of its rates over all nodes. Maximised is the smallest ratio and then, at that,
    the sum of all.

    Args:
        rates: [trainer][type], throughput with all of the time there; one at least is positive.
        sizes: nodes that the trainer uses at once.
        counts: nodes of each type.

    Raises:
        ProblemError: HiGHS has no answer, which would be a defect of it.
    """
    table, nodes = np.array(rates, dtype=np.float64), np.array(counts, dtype=np.float64)
    normal = (table * nodes).sum(axis=1) / max(sum(counts), 1)
    ratios = table / np.where(normal > 0.0, normal, 1.0)[:, None]
    n_trainers, n_types = ratios.shape
    highs = new_highs()
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        highs.setOptionValue(name, value)
    none, inf = np.array([], dtype=np.int32), highspy.kHighsInf
    for _ in range(ratios.size):
        highs.addCol(0.0, 0.0, 1.0, 0, none, np.array([]))
    highs.addCol(1.0, 0.0, inf, 0, none, np.array([]))  # the smallest ratio
    highs.changeObjectiveSense(highspy.ObjSense.kMaximize)
    columns = np.arange(ratios.size, dtype=np.int32).reshape(ratios.shape)
    for j in range(n_trainers):
        highs.addRow(-inf, 1.0, n_types, columns[j], np.ones(n_types))
        with_least = np.append(columns[j], np.int32(ratios.size))
        highs.addRow(0.0, inf, n_types + 1, with_least, np.append(ratios[j], -1.0))
    for k in range(n_types):
        highs.addRow(
            -inf, nodes[k], n_trainers, columns[:, k].copy(), np.array(sizes, dtype=np.float64)
        )
    least_ratio = _run(highs)[-1]
    highs.changeColBounds(ratios.size, least_ratio * (1.0 - SLACK), inf)
    for column, ratio in enumerate([*ratios.ravel().tolist(), 0.0]):
        highs.changeColCost(column, ratio)
    shares: list[list[float]] = np.array(_run(highs)[:-1]).reshape(ratios.shape).tolist()
    return shares


def _run(highs: Any) -> list[float]:
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise ProblemError(
            "BFT-3022",
            f"HiGHS has no answer for shares of time: {highs.getModelStatus().name}.",
            "Report this with the problem: no time for anybody is an answer.",
        )
    return list(highs.getSolution().col_value)


def _allocate(problem: Problem, context: Context, /) -> Decided:  # noqa: ARG001
    """Classes by a linear program, sizes by filling."""
    handing = Handing(problem)
    everybody = range(len(handing.trainers))
    sizes = fair_sizes(handing, everybody)
    admitted = admit(handing, everybody, _classes(handing, sizes))
    levels: dict[int, list[float]] = {}
    for j in admitted:
        fair = handing.rate(j, sizes[j])
        levels[j] = handing.rates(j)
        if fair > 0.0:
            levels[j] = [rate / fair for rate in levels[j]]

    def next_step(j: int, size: int) -> Step | None:
        higher = next_rise(levels[j], size)
        if higher is None:
            return None
        return Step(urgency=-levels[j][size], size=higher)

    def why(j: int) -> tuple[Term, ...]:
        return (
            Term("normalised throughput", levels[j][handing.size(j)]),
            Term("equal share", sizes[j], "nodes"),
        )

    fill(admitted, next_step, handing.take)
    return handing.answer(POLICY.name, terms_of(handing, admitted, why))


def _classes(handing: Handing, sizes: list[float]) -> dict[int, int]:
    """The class in which each trainer has its largest share of time."""
    takes_part = [j for j in range(len(sizes)) if handing.accepted(j)]
    chooses = [j for j in takes_part if handing.home[j] is None]
    if len(handing.counts) == 1 or not chooses:
        return {}
    rates, its_sizes = list[list[float]](), list[float]()
    for j in takes_part:
        rates.append(list(map(float, handing.pool.accepts[j])))
        its_sizes.append(sizes[j])
    time_shares = max_min_time_shares(rates, its_sizes, handing.counts)
    classes: dict[int, int] = {}
    for j, row in zip(takes_part, time_shares, strict=True):
        if handing.home[j] is None:
            shares = [round(share, DIGITS) for share in row]
            classes[j] = max(handing.accepted(j), key=shares.__getitem__)
    return classes


POLICY = Policy(
    "gavel-max-min",
    Traits(
        about=About(
            does="the largest minimum of normalised throughput",
            optimises="the smallest throughput relative to an equal share",
            source="Narayanan et al., Gavel, 2020",
        )
    ),
    _allocate,
)
