"""Pilots and trainers as observed → what a claim costs, and the shortest gap worth one.

``look`` is a fold, called once per decision where ``min_gap_s`` is to be learnt; what it
keeps (``ClaimCosts``) is part of ``Memory``. ``shortest_gap_s`` returns the break-even.

A pilot that lasts L seconds trains for L - c - w of them: c from the request until its agent
is connected (the batch system's cycle is in it), w from then, or from when a trainer was to
have it, until it is a member of a generation. For it the s nodes of its trainer pause twice,
R_up when it joins and R_down when it leaves. So

    gain = L - c - w          node-seconds trained
    cost = c + w + s (R_up + R_down)
    worth it when gain + (c + w) = L >= FACTOR * (c + w + s (R_up + R_down))

c + w counts as a cost although the node would be idle otherwise: it is held for nothing, and
whatever we hold can be in somebody's way. With FACTOR 2 at least half of the time a node is
held, and paused for, trains. s (R_up + R_down) is the mean over the trainers that run: which
of them gets the node is not known before the decision; several nodes that join together
share one pause, so this is rather too much than too little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bftrainer.trainer import TrainerRecord

if TYPE_CHECKING:  # ``types`` has our ClaimCosts in it
    from bftrainer.decide.types import PilotView

FACTOR = 2.0
ENOUGH = 3  # of each measurement, before it is believed
REMEMBERED = 20  # what was measured earlier counts less and less
SHORTEST_S, LONGEST_S = 60.0, 3600.0  # a minute is the shortest limit Slurm knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean that follows: of the last ``REMEMBERED`` values, roughly."""

    value_s: float = 0.0
    count: int = 0

    def with_one(self, measured_s: float) -> Mean:
        """Take one more value."""
        count = self.count + 1
        step = (measured_s - self.value_s) / min(count, REMEMBERED)
        return Mean(value_s=self.value_s + step, count=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Warming:
    """A held node on its way into a trainer."""

    trainer_id: str
    since_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCosts:
    """What claims have cost, and those that are under way."""

    claim: Mean = Mean()  # requested -> held
    warm_up: Mean = Mean()  # held and wanted -> a member
    since_s: float | None = None  # when this daemon looked first
    held: frozenset[str] = frozenset()  # pilots held at the last look
    warming: Mapping[str, Warming] = field(default_factory=dict)  # by pilot


def look(
    before: ClaimCosts,
    pilots: Sequence[PilotView],
    assignment: Mapping[str, str],
    training: Mapping[str, str],
    now_s: float,
) -> ClaimCosts:
    """Count in one look at the pilots.

    A pilot requested before the first look (by an earlier daemon) teaches nothing, nor does
    one that leaves, or whose trainer changes, on the way.

    Args:
        before: what was known.
        pilots: ours.
        assignment: node -> trainer, as decided last.
        training: node -> trainer, members of generations now.
        now_s: batch system's clock.
    """
    ours = [p for p in pilots if p.is_held and not p.is_leaving]
    held = frozenset([p.pilot_id for p in ours])
    if before.since_s is None:
        return replace(before, since_s=now_s, held=held)
    if held == before.held and not before.warming:
        return before  # the usual case: all train
    claim, warm_up = before.claim, before.warm_up
    warming: dict[str, Warming] = {}
    for pilot in ours:
        known = before.warming.get(pilot.pilot_id)
        trainer_id = assignment.get(pilot.node)
        if pilot.pilot_id not in before.held and pilot.requested_s >= before.since_s:
            claim = claim.with_one(max(0.0, now_s - pilot.requested_s))
            known = Warming(trainer_id=trainer_id, since_s=now_s) if trainer_id else None
        if known is None:
            continue
        if training.get(pilot.node) == known.trainer_id:
            warm_up = warm_up.with_one(max(0.0, now_s - known.since_s))
        elif trainer_id == known.trainer_id:
            warming[pilot.pilot_id] = known
    return replace(before, claim=claim, warm_up=warm_up, held=held, warming=warming)


def shortest_gap_s(
    unknown_s: float,
    costs: ClaimCosts,
    trainers: Sequence[TrainerRecord],
    rescale_up_guess_s: float,
    rescale_down_guess_s: float,
) -> float:
    """Return how long a pilot must be able to last to be worth its claim.

    Args:
        unknown_s: the answer until enough claims were measured.
        costs: what claims have cost.
        trainers: that are not final.
        rescale_up_guess_s: of trainers that have not been measured.
        rescale_down_guess_s: the same of a shrink.
    """
    if min(costs.claim.count, costs.warm_up.count) < ENOUGH:
        return unknown_s
    pauses_s = [
        trainer.progress.size
        * (
            _known(trainer.costs.rescale_up_s, rescale_up_guess_s)
            + _known(trainer.costs.rescale_down_s, rescale_down_guess_s)
        )
        for trainer in trainers
        if trainer.progress.size
    ]
    pause_s = sum(pauses_s) / len(pauses_s) if pauses_s else 0.0
    break_even_s = FACTOR * (costs.claim.value_s + costs.warm_up.value_s + pause_s)
    # Whole seconds: what is learnt a little further changes nothing.
    return min(max(SHORTEST_S, float(math.ceil(break_even_s))), LONGEST_S)


def _known(measured_s: float | None, guess_s: float) -> float:
    return guess_s if measured_s is None else measured_s
