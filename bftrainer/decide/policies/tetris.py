"""Tetris: trainers that fit well into the free nodes, and short ones, come first.

Source: Grandl et al., "Multi-resource packing for cluster schedulers" (SIGCOMM'14): the score is
the alignment of demand and free resources, both as shares of the pool, less epsilon times the work
left; epsilon is the mean alignment over the mean work left. Here a resource is a class of nodes,
the demand is what a rigid trainer requests (``queue_order``), its work left are the node-seconds
it needs at that size. Unlike a task of the paper a trainer can be displaced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bftrainer.decide.policies.base import About, Context, Decided, Policy, Traits
from bftrainer.decide.policies.distribution import Handing, seconds
from bftrainer.model.decision import Term
from milp.problem import Problem
from milp.tables import FloatArray

LONGEST_S = 1e9  # of a trainer whose rate is 0


def alignment(demands: npt.ArrayLike, free: Sequence[float], total: Sequence[float]) -> FloatArray:
    """Return, by row of demands, its product with what is free, both as shares of the total."""
    capacity = np.maximum(total, 1.0)
    products = (np.asarray(demands, dtype=np.float64) / capacity) * (free / capacity)
    aligned = np.zeros(len(products))
    for column in products.T:  # in this order, on every processor
        aligned += column
    return aligned


def exchange_rate(aligned: FloatArray, work_left: FloatArray) -> float:
    """Return epsilon: how much alignment a unit of work left is worth."""
    whole = math.fsum(work_left.tolist())
    if whole > 0.0:
        return math.fsum(aligned.tolist()) / whole
    return 0.0


def _allocate(problem: Problem, context: Context, /) -> Decided:
    """The trainer of the best score among those that fit is next."""
    handing = Handing(problem, admits=True)
    requests = list(map(handing.largest, range(len(handing.trainers))))
    work_left = _work_left(handing, context, requests)
    # A row for each class that a trainer could choose.
    rows: list[tuple[int, int]] = []
    class_demands: list[list[float]] = []
    row_trainers: list[int] = []
    for j, size in enumerate(requests):
        if not size:
            continue
        for k in _choices(handing, j):
            rows.append((j, k))
            row_trainers.append(j)
            class_demands.append(_demand(handing, size, j, k))
    work = work_left[row_trainers]
    demands = np.array(class_demands).reshape(len(rows), len(handing.counts))
    worth = exchange_rate(alignment(demands, handing.free, handing.counts), work)
    served: list[int] = []
    terms: dict[int, tuple[Term, ...]] = {}

    def note(j: int, score: float) -> None:
        terms[j] = (
            Term("score", score),
            Term("of it for the work left", -worth * float(work_left[j])),
            Term("requested", requests[j], "nodes"),
            Term("could have", handing.could_have(j), "nodes"),
        )

    tried: set[int] = set()
    while any(handing.free) and len(served) < problem.p_jmax and len(tried) < len(requests):
        scores = alignment(demands, handing.free, handing.counts) - worth * work
        for row in np.argsort(-scores, kind="stable").tolist():
            j, k = rows[row]
            if j in tried:
                continue
            tried.add(j)  # who does not fit now never will
            note(j, scores[row])
            need = max(handing.trainers[j].n_min, requests[j])
            if handing.settle(j, need, k) and handing.take(j, need):
                served.append(j)
                break
        else:
            break
    waiting = [j for j in range(len(requests)) if j not in served]
    scores = alignment(demands, handing.free, handing.counts) - worth * work
    for j in waiting:
        its_scores = [scores[row] for row, choice in enumerate(rows) if choice[0] == j]
        note(j, max(its_scores, default=0.0))
    return handing.answer(POLICY.name, terms.__getitem__, [*served, *waiting])


def _work_left(handing: Handing, context: Context, requests: Sequence[int]) -> FloatArray:
    """Node-seconds left at the requested size; without a goal as for the one with most."""
    work = np.full(len(requests), -1.0)
    for j, size in enumerate(requests):
        left_samples = context.trainers[handing.trainers[j].trainer_id].left_samples
        if left_samples is not None:
            work[j] = size * min(seconds(left_samples, handing.rate(j, size)), LONGEST_S)
    work[work < 0.0] = max(0.0, work.max(initial=0.0))
    return work


def _choices(handing: Handing, j: int) -> list[int]:
    home = handing.home[j]
    if home is None:
        return handing.accepted(j)
    return [home]


def _demand(handing: Handing, size: int, j: int, k: int) -> list[float]:
    """Return its demand by class; a trainer that mixes classes takes of each in proportion."""
    counts, accepts = handing.counts, handing.pool.accepts[j]
    if not handing.pool.mixes[j]:
        demand = [0.0] * len(counts)
        demand[k] = float(size)
        return demand
    offered = [count * accepted for count, accepted in zip(counts, accepts, strict=True)]
    return [size * count / sum(offered) for count in offered]


POLICY = Policy(
    "tetris",
    Traits(
        about=About(
            does="pack, and shortest work first",
            optimises="alignment with the free nodes, less the work left",
            source="Grandl et al., Tetris, 2014",
        ),
        is_rigid=True,
        follows_curves=False,
        admits=True,
        reads_rates=True,
    ),
    _allocate,
)
