"""Losses of nodes: how often trainers have them, and the throughput that is left at a size. Pure.

A trainer of n nodes that loses one pauses, whatever the others do; one that cannot go on without it
begins again from its last checkpoint. Eq. 16 of the BFTrainer paper leaves that out: it charges the
rescales that a decision makes. Where nodes stay for minutes and pauses take as long, or nodes stay
no longer than a start takes, most of what is lost is lost that way.

``observe``, an estimator of ``observation``, learns the *life*: the node-seconds trained per loss
of a trainer (nodes that go together are one loss). Shrinks by decision are none. With losses that
come independently of each other, n nodes are lost at the rate n / life, and of the time is left

    exp(-n R / life)         where it goes on with fewer: no loss within the last R seconds;
    1 / (1 + n B / life)     where it begins again, with B seconds of its training to redo.

The warm-up of the nodes on which it begins again is charged when it gets them.

``expected`` states a trainer's curve with that; the objective, its checker and its definition
(``milp.reference.timeline``) stay as they are. Called by ``allocation`` for policies that maximise
the objective (``Traits.expects_losses``).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Final

from bftrainer.model.decision import DecisionInput, Losses, Memory, Settings
from bftrainer.model.quantities import time_span
from bftrainer.model.trainer import TrainerRecord
from milp.portable import exp
from milp.problem import Curve, ProblemTrainer, largest_size
from milp.worth import curve_at

ENOUGH: Final = 5  # losses before the average is used
NEWEST: Final = 1.0 / 30.0  # weight of the newest in the average
REDONE_S: Final = 7.5  # half of the time between two checkpoints of a young trainer (ADR 32)
LEAST_EFFECT: Final = 0.01  # below it a curve stays as it is
EVERY_SIZE_UP_TO: Final = 16  # is a corner of the curve; beyond, sizes grow by
GROWTH: Final = 1.2
MOST_PAUSES: Final = 700.0  # e to the power of less is no number > 0


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Count the node-seconds trained, and the losses that no decision asked for."""
    if not given.settings.expects_losses:
        return memory
    before, training = memory.losses, given.training
    if before.training == training:
        return memory
    run_node_s = _run_node_s(before, given.now_s)
    life_node_s, count = before.life_node_s, before.count
    if before.at_s < given.slept.until_s:  # who went meanwhile, and when, is not known
        run_node_s = before.run_node_s
    else:
        lost_nodes = before.training.keys() - training.keys()
        for pilot in given.pilots:
            if pilot.is_held and not pilot.is_leaving:
                lost_nodes.discard(pilot.node)
        for _ in {before.training[node] for node in lost_nodes}:
            count += 1
            life_node_s += max(NEWEST, 1.0 / count) * (run_node_s - life_node_s)
            run_node_s = 0.0
    losses = Losses(
        training=dict(training),
        at_s=given.now_s,
        run_node_s=run_node_s,
        life_node_s=life_node_s,
        count=count,
    )
    return replace(memory, losses=losses)


def _run_node_s(losses: Losses, now_s: float) -> float:
    """Return the node-seconds trained since the last loss."""
    return losses.run_node_s + len(losses.training) * max(0.0, now_s - losses.at_s)


def life_s(losses: Losses, now_s: float) -> float:
    """Return the node-seconds per loss, to two digits; infinite while they are unknown."""
    if losses.count < ENOUGH:
        return math.inf
    # Nothing lost for longer than usual says that losses have become rare.
    life_node_s = max(losses.life_node_s, _run_node_s(losses, now_s), 1.0)
    return float(f"{life_node_s:.1e}")


def expected(
    trainer: ProblemTrainer,
    record: TrainerRecord,
    settings: Settings,
    *,
    life_node_s: float,
    n_nodes: int,
) -> ProblemTrainer:
    """Return the trainer with what is left of its throughput, by size.

    Args:
        trainer: as the problem states it.
        record: of the same trainer.
        settings: for pauses that are not known.
        life_node_s: see ``life_s``.
        n_nodes: of the pool.
    """
    curve = _left_of(
        trainer.curve,
        trainer.n_min,
        max(trainer.n_min, min(trainer.n_max, n_nodes + 1)),
        trainer.sizes,
        _pause_s(record, settings) / life_node_s,
        REDONE_S / life_node_s,
    )
    if curve is trainer.curve:
        return trainer
    return replace(trainer, curve=curve)


def _pause_s(record: TrainerRecord, settings: Settings) -> float:
    """Return the pause of a loss: one without notice is no shorter than a longer rescale."""
    up_s, down_s = record.costs.rescale_up_s, record.costs.rescale_down_s
    if up_s is None:
        up_s = settings.rescale_up_guess_s
    if down_s is None:
        down_s = settings.rescale_down_guess_s
    return max(up_s, down_s)


def sentence(record: TrainerRecord, settings: Settings, losses: Losses, size: int) -> str:
    """Say what losses leave of the time at a size and with one node more; "": they hardly matter.

    Args:
        record: of a trainer.
        settings: of the decision.
        losses: what it knew.
        size: that the trainer got.
    """
    life_node_s, pause_s = life_s(losses, losses.at_s), _pause_s(record, settings)
    share_of_next = _share_without_pauses(pause_s / life_node_s, size + 1)
    if not settings.expects_losses or share_of_next > 1.0 - LEAST_EFFECT:
        return ""
    share = _share_without_pauses(pause_s / life_node_s, size)
    return (
        f"Trainers lose nodes once in {time_span(life_node_s)} of one node's training, and it"
        f" pauses for {time_span(pause_s)} then: {size} nodes train {share:.0%} of the time,"
        f" {size + 1} nodes {share_of_next:.0%}."
    )


def _share_without_pauses(pauses: float, size: int) -> float:
    """Return the share of the time in which a trainer of this size does not pause for a loss."""
    return exp(-min(pauses * size, MOST_PAUSES))


@lru_cache(maxsize=1 << 13)  # one for each trainer, as in policy_answer; they change seldom
def _left_of(
    curve: Curve, n_min: int, n_max: int, only: tuple[int, ...], pauses: float, begins: float
) -> Curve:
    """Return the curve with losses; ``pauses`` and ``begins``: R and B over the life."""
    sizes = _corners(curve, n_min, n_max)
    shares = []
    for size in sizes:
        goes_on = largest_size(size - 1, n_min, n_max, only)
        if goes_on:
            shares.append(_share_without_pauses(pauses, size))
        else:
            shares.append(1.0 / (1.0 + begins * size))
    if min(shares) > 1.0 - LEAST_EFFECT:
        return curve
    rates = [share * curve_at(curve, n) for n, share in zip(sizes, shares, strict=True)]
    if n_min > 1:  # the unit of relative objectives is what one node makes: alone it begins again
        sizes, rates = [1, *sizes], [curve_at(curve, 1) / (1.0 + begins), *rates]
    return Curve(sizes=tuple(sizes), samples_per_s=tuple(rates))


def _corners(curve: Curve, n_min: int, n_max: int) -> list[int]:
    sizes, size = {n_min, n_max}, n_min
    for measured_size in curve.sizes:
        if n_min <= measured_size <= n_max:
            sizes.add(measured_size)
    while size < n_max:
        sizes.add(size)
        size = size + 1 if size < EVERY_SIZE_UP_TO else math.ceil(size * GROWTH)
    return sorted(sizes)
