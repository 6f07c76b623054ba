"""Throughput curves of trainers, and how well they are known.

The curve is fitted to measurements (``fit``); a user's own curve is used until measurements
contradict it, then corrected. Called by ``decide.stating`` and ``decide.asking``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from statistics import geometric_mean

from bftrainer.decide.throughput.batch_curve import fitted_with_batches
from bftrainer.decide.throughput.fit import CAUTIOUS, USUAL, Fitted, MeasuredSize, correct, fit
from bftrainer.decide.throughput.plausibility import FASTEST, LEAP, is_plausible
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord
from milp.problem import Curve, Problem
from milp.worth import curve_at

OLD_ERROR = 0.05  # relative, for throughputs without statistics


def fitted(record: TrainerRecord, *, explores: bool) -> Fitted:
    """Return the curve that decisions assume for the trainer, and how well it is known.

    Args:
        record: the trainer.
        explores: whether decisions may prefer sizes that improve the curve.
    """
    points, n_max, own = points_of(record.costs), record.spec.n_max, record.spec.curve
    guess = USUAL if explores else CAUTIOUS
    if record.spec.batch is not None and own is None:
        found = fitted_with_batches(record, points)
    else:
        found = fit(points, n_max, guess) if own is None else correct(own, points, n_max, guess)
    if found.curve == own or max(found.curve.samples_per_s) <= FASTEST:
        return found
    rates = tuple(min(rate, FASTEST) for rate in found.curve.samples_per_s)
    return found._replace(curve=Curve(sizes=found.curve.sizes, samples_per_s=rates))


def points_of(costs: MeasuredCosts) -> tuple[MeasuredSize, ...]:
    """Return the throughputs published to decisions, with their errors.

    Per node no size counts as more than ``LEAP`` times as fast as the smallest.
    """
    errors = {one.size: one.told_error for one in costs.throughput}
    told = [one for one in costs.samples_per_s_by_size if is_plausible(*one)]
    most = LEAP * told[0][1] / told[0][0] if told else 0.0
    return tuple(
        MeasuredSize(size, min(rate, most * size), min(1.0, errors.get(size, OLD_ERROR)))
        for size, rate in told
    )


def put_to_scale(problem: Problem, records: Iterable[TrainerRecord], *, is_bold: bool) -> Problem:
    """Give trainers of unknown rate a rate comparable with the others'.

    On one node it is the geometric mean of the others'; with ``is_bold`` the maximum, so that
    they get nodes, and are measured, soon.
    """
    unknown = {r.trainer_id for r in records if not is_known(r)}
    known = [curve_at(t.curve, 1) for t in problem.trainers if t.trainer_id not in unknown]
    known = [rate for rate in known if rate > 0.0]
    if not unknown or not known:
        return problem
    scale = max(known) if is_bold else geometric_mean(known)
    trainers = [
        replace(t, curve=_times(t.curve, scale / curve_at(t.curve, 1)))
        if t.trainer_id in unknown
        else t
        for t in problem.trainers
    ]
    return replace(problem, trainers=tuple(trainers))


def is_known(record: TrainerRecord) -> bool:
    """Whether the curve is in samples per second: measured, or the user's."""
    return record.spec.curve is not None or bool(record.costs.samples_per_s_by_size)


def _times(curve: Curve, factor: float) -> Curve:
    return replace(curve, samples_per_s=tuple(factor * rate for rate in curve.samples_per_s))
