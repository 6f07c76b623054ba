"""Trainer records → throughput curves and rescale costs the decision can use.

The curve is fitted to what was measured (``bftrainer.profile.fit``); a user's own curve is
taken as it is until measurements contradict it, and corrected then.
Called by ``decision`` and ``exploring``.
"""

from __future__ import annotations

from typing import NamedTuple

from bftrainer.decide.types import Settings
from bftrainer.profile.fit import CAUTIOUS, USUAL, Fitted, Point, correct, fit
from bftrainer.profile.plausible import FASTEST, LEAP, is_plausible
from bftrainer.trainer import MeasuredCosts, TrainerRecord
from milp.errors import ProblemError
from milp.problem import Curve, Problem, ProblemTrainer
from milp.validate import validate

OLD_ERROR = 0.05  # relative, of throughputs that come without statistics


def curve_of(record: TrainerRecord, settings: Settings) -> Curve:
    """Return the curve that decisions take to be the trainer's."""
    return fitted(record, settings).curve


def fitted(record: TrainerRecord, settings: Settings) -> Fitted:
    """Return the curve and how well it is known."""
    points, n_max, own = points_of(record.costs), record.spec.n_max, record.spec.curve
    guess = USUAL if settings.explore_budget > 0.0 else CAUTIOUS
    found = fit(points, n_max, guess) if own is None else correct(own, points, n_max, guess)
    if found.curve == own or max(found.curve.samples_per_s) <= FASTEST:
        return found
    rates = tuple(min(rate, FASTEST) for rate in found.curve.samples_per_s)
    return found._replace(curve=Curve(sizes=found.curve.sizes, samples_per_s=rates))


def points_of(costs: MeasuredCosts) -> tuple[Point, ...]:
    """Return what decisions have been told of the throughput, with its error.

    Per node no size counts as more than ``LEAP`` times as fast as the smallest.
    """
    errors = {one.size: one.told_error for one in costs.throughput}
    told = [one for one in costs.samples_per_s_by_size if is_plausible(*one)]
    most = LEAP * told[0][1] / told[0][0] if told else 0.0
    return tuple(
        Point(size, min(rate, most * size), min(1.0, errors.get(size, OLD_ERROR)))
        for size, rate in told
    )


def unfit(record: TrainerRecord, settings: Settings) -> str:
    """Say why no allocation can be made with this trainer in it, whoever else there is.

    "": one can. Asked when a trainer is submitted, and when a decision has failed.
    """
    try:
        alone = (_make(record, (), settings, ()),)
        validate(
            Problem(nodes=(), trainers=alone, t_fwd_s=0.0, p_jmax=1, objective=settings.objective)
        )
    except ProblemError as problem:
        return problem.cause
    except Exception as failure:  # noqa: BLE001 - numbers that arithmetic cannot take
        return f"Trainer {record.trainer_id}: its numbers are beyond arithmetic ({failure})."
    return ""


def problem_trainer(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...] = (),
) -> ProblemTrainer:
    """Return the trainer as the allocation problem sees it."""
    key = (id(record), id(settings))
    known = _KNOWN.get(key)
    if (
        known is not None
        and known.record is record
        and known.settings is settings
        and known.made.current == current
        and known.made.settled == settled
    ):
        return known.made
    made = _make(record, current, settings, settled)
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[key] = _Known(record, settings, made)
    return made


class _Known(NamedTuple):
    """What was made last of a record: most trainers are the same at the next decision."""

    record: TrainerRecord
    settings: Settings
    made: ProblemTrainer


_MOST_KNOWN = 1024
# By identity, because hashing a whole record costs more than making the trainer. The
# records in it are alive, so that no other object can have their identity.
_KNOWN: dict[tuple[int, int], _Known] = {}


def _make(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...],
) -> ProblemTrainer:
    spec, costs = record.spec, record.costs
    limit = settings.max_nodes_per_trainer
    up, down = costs.rescale_up_s, costs.rescale_down_s
    return ProblemTrainer(
        trainer_id=record.trainer_id,
        n_min=spec.n_min,
        # Never below n_min: submissions are checked, a policy may have changed since.
        n_max=spec.n_max if limit is None else max(spec.n_min, min(spec.n_max, limit)),
        curve=curve_of(record, settings),
        rescale_up_s=settings.rescale_up_guess_s if up is None else up,
        rescale_down_s=settings.rescale_down_guess_s if down is None else down,
        current=current,
        settled=settled,
        weight=spec.weight,
        owner=spec.user,
        utility=spec.utility,
    )
