"""Policies that give each trainer n_min and then hand out nodes in steps, the most urgent first.

Used by optimus, drf, themis, gavel_max_min and pollux, which differ in what is urgent. For a sum of
concave gains this is the optimum; for a minimum of rising levels, where the lowest is the most
urgent, too (both up to steps of several nodes, and within one class).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bftrainer.decide.policies.base import Context
from bftrainer.decide.policies.distribution import Handing
from bftrainer.model.decision import Term


class Step(NamedTuple):
    """The next step of a trainer."""

    urgency: float  # the largest first
    size: int  # that it would have then


NextStep = Callable[[int, int], Step | None]  # of trainer j at a size; None: it takes no more


def admit(
    handing: Handing, order: Iterable[int], preferred: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Give n_min to trainers in order while it fits, to p_jmax at most.

    Args:
        handing: the pool.
        order: of the trainers.
        preferred: classes to choose for trainers without one, where they fit.

    Returns:
        The sizes of those admitted.
    """
    admitted: dict[int, int] = {}
    for j in order:
        if len(admitted) == handing.problem.p_jmax:
            break
        n_min = handing.trainers[j].n_min
        if handing.settle(j, n_min, (preferred or {}).get(j)) and handing.take(j, n_min):
            admitted[j] = n_min
    return admitted


def terms_of(
    handing: Handing, admitted: Mapping[int, int], why: Callable[[int], tuple[Term, ...]]
) -> Callable[[int], tuple[Term, ...]]:
    """Return what the sizes follow from, once all nodes are handed out.

    Args:
        handing: the pool.
        admitted: trainers that have n_min at least.
        why: what the size of one of them follows from.
    """

    def terms(j: int) -> tuple[Term, ...]:
        room = Term("could have", handing.could_have(j), "nodes")
        if j in admitted:
            return *why(j), room
        return Term("needs at least", handing.trainers[j].n_min, "nodes"), room

    return terms


def fill(
    sizes: Mapping[int, int], next_step: NextStep, take: Callable[[int, int], bool]
) -> list[int]:
    """Hand out nodes step by step; of equally urgent trainers the first submitted is first.

    Args:
        sizes: those to begin with, of the trainers that take part.
        next_step: what a trainer of a size would take.
        take: gives a trainer a size if it fits, which once it does not is for good.

    Returns:
        The trainers that took a step, in order.
    """
    waiting: list[tuple[float, int, int]] = []
    finished: list[int] = []

    def ask(j: int, size: int) -> None:
        step = next_step(j, size)
        if step is not None:
            heapq.heappush(waiting, (-step.urgency, j, step.size))

    for j, size in sizes.items():
        ask(j, size)
    while waiting:
        _, j, size = heapq.heappop(waiting)
        if take(j, size):
            finished.append(j)
            ask(j, size)
    return finished


def fair_sizes(handing: Handing, among: Sequence[int]) -> list[float]:
    """Return how many nodes each trainer would have if every class were shared equally.

    Each class is shared by those among ``among`` that accept it; bounded by what sizes a trainer
    takes. No whole numbers.
    """
    accept = [0] * len(handing.counts)
    for j in among:
        for k in handing.accepted(j):
            accept[k] += 1
    sizes: list[float] = []
    for j, trainer in enumerate(handing.trainers):
        share = math.fsum([handing.counts[k] / max(1, accept[k]) for k in handing.accepted(j)])
        sizes.append(max(trainer.n_min, min(share, trainer.n_max)))
    return sizes


def samples_ahead(handing: Handing, context: Context, j: int) -> float:
    """Return the samples left of a trainer.

    One without a goal counts as if it ended at the forward-looking time on n_min nodes: so much is
    certain.
    """
    trainer = handing.trainers[j]
    left_samples = context.trainers[trainer.trainer_id].left_samples
    if left_samples is None:
        return handing.problem.t_fwd_s * handing.rate(j, trainer.n_min)
    return left_samples


def saved(before: float, after: float) -> float:
    """Return a difference in which two infinite ones are alike."""
    if before == after:
        return 0.0
    return before - after


def next_rise(levels: Sequence[float], size: int) -> int | None:
    """Return the next size whose level is higher; None: there is none."""
    return next((n for n in range(size + 1, len(levels)) if levels[n] > levels[size]), None)
