"""Throughput curves of trainers, with the errors of their measurements. Pure.

The curve is fitted to measurements (``fit``); a user's own curve is used until measurements
contradict it, then corrected. Called by ``decide.policy_answer``.

An ``Observation`` follows one generation: committed samples over time, cut into intervals, without
the first steps after a rescale. Each interval is one observation; ``add`` folds it into the
statistics of its size, a window in which old ones fade (EWMA); the time comes in. Called by
``fleet.trainers.costs``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from bftrainer.decide.constraints.chain import Ask, Constraint
from bftrainer.decide.policies.base import Decided
from bftrainer.decide.throughput.batch_curve import fitted_with_batches
from bftrainer.decide.throughput.fit import CAUTIOUS, USUAL, Fitted, MeasuredSize, correct, fit
from bftrainer.decide.throughput.plausibility import FASTEST, LEAP, is_plausible
from bftrainer.model.trainer import MeasuredCosts, SizeThroughput, TrainerRecord
from milp.portable import geometric_mean
from milp.problem import Curve, Problem, ProblemTrainer
from milp.worth import curve_at

ASSUMED_ERROR: Final = 0.05  # relative, for throughputs without statistics
SETTLE_S, SETTLE_STEPS = 1.0, 3  # of a new generation, to warm caches and buffers
OBSERVE_S: Final = 2.0  # one observation; a report comes every half second
WINDOW: Final = 30.0  # observations this long ago weigh 1/e: a minute of training
MAX_SIZES: Final = 24  # per trainer; the one measured longest ago is dropped
USUAL_NOISE: Final = 0.05  # prior relative standard deviation
USUAL_NOISE_WEIGHT: Final = 2.0  # of the prior, in observations
CLIP_SD: Final = 4.0  # observations further off (stalls) are clipped
LEAST_ERROR: Final = 0.003  # lower bound of the error of a mean


def fitted(record: TrainerRecord, *, explores: bool) -> Fitted:
    """Return the curve that decisions assume for the trainer, and how well it is known.

    Args:
        record: the trainer.
        explores: whether decisions may prefer sizes that improve the curve.
    """
    points, n_max, users_curve = points_of(record.costs), record.spec.n_max, record.spec.curve
    guess = CAUTIOUS
    if explores:
        guess = USUAL
    if record.spec.batch is not None and users_curve is None:
        fitted_curve = fitted_with_batches(record, points)
    elif users_curve is None:
        fitted_curve = fit(points, n_max, guess)
    else:
        fitted_curve = correct(users_curve, points, n_max, guess)
    if fitted_curve.curve == users_curve or max(fitted_curve.curve.samples_per_s) <= FASTEST:
        return fitted_curve
    rates = [min(rate, FASTEST) for rate in fitted_curve.curve.samples_per_s]
    curve = replace(fitted_curve.curve, samples_per_s=tuple(rates))
    return fitted_curve._replace(curve=curve)


def points_of(costs: MeasuredCosts) -> tuple[MeasuredSize, ...]:
    """Return the throughputs published to decisions, with their errors then, by ascending size.

    Per node no size counts as more than ``LEAP`` times as fast as the smallest, the first.
    """
    errors = _errors_by_size(costs)
    points: list[MeasuredSize] = []
    max_per_node = math.inf
    for size, rate in costs.samples_per_s_by_size:
        if not is_plausible(size, rate):
            continue
        if not points:
            max_per_node = LEAP * rate / size
        error = min(1.0, errors.get(size, ASSUMED_ERROR))
        points.append(MeasuredSize(size, min(rate, max_per_node * size), error))
    return tuple(points)


def _errors_by_size(costs: MeasuredCosts) -> Mapping[int, float]:
    """Return the error of each size's throughput: that of its fastest batch, whose rate it is."""
    fastest: dict[int, tuple[float, int]] = {}  # size -> rate, batch
    for size, batch, rate in costs.samples_per_s_by_batch:
        fastest[size] = max((rate, batch), fastest.get(size, (0.0, 0)))
    errors: dict[int, float] = {}
    for entry in costs.throughput:
        _, fastest_batch = fastest.get(entry.size, (0.0, entry.batch))
        if entry.batch == fastest_batch:
            errors[entry.size] = entry.told_error
    return errors


def put_to_scale(problem: Problem, records: Iterable[TrainerRecord], *, is_bold: bool) -> Problem:
    """Give trainers of unknown rate a rate comparable with the others'.

    On one node it is the geometric mean of the others'; with ``is_bold`` the maximum, so that
    they get nodes, and are measured, soon.
    """
    unmeasured = {r.trainer_id for r in records if not is_known(r)}
    rates: list[float] = []
    for trainer in problem.trainers:
        rate = curve_at(trainer.curve, 1)
        if rate > 0.0 and trainer.trainer_id not in unmeasured:
            rates.append(rate)
    if not unmeasured or not rates:
        return problem
    scale = max(rates) if is_bold else geometric_mean(rates)

    def scaled(trainer: ProblemTrainer) -> ProblemTrainer:
        if trainer.trainer_id not in unmeasured:
            return trainer
        factor = scale / curve_at(trainer.curve, 1)
        return replace(trainer, curve=_times(trainer.curve, factor))

    return replace(problem, trainers=tuple(map(scaled, problem.trainers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparableRates(Constraint[Problem, Decided]):
    """Trainers of unknown rate have one, for answers that compare rates."""

    records: Sequence[TrainerRecord]
    is_bold: bool
    name: ClassVar[str] = "unknown-rates"
    in_words: ClassVar[str] = "rates that are assumed until they are measured"

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Ask with comparable rates."""
        return ask(put_to_scale(problem, self.records, is_bold=self.is_bold))


def is_known(record: TrainerRecord) -> bool:
    """Return whether the curve is in samples per second: measured, or the user's."""
    return record.spec.curve is not None or bool(record.costs.samples_per_s_by_size)


def _times(curve: Curve, factor: float) -> Curve:
    return replace(curve, samples_per_s=tuple(factor * rate for rate in curve.samples_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The start of the current observation of a generation."""

    generation: int
    size: int
    step: int
    samples: int
    at_s: float
    is_settled: bool = False
    batch: int = 0  # global batch, if the trainer admits several


def add_sample(
    watch: Observation, *, generation: int, step: int, samples: int, now_s: float
) -> tuple[Observation, float | None]:
    """Process a report; return samples per second when an observation is complete.

    Every member reports, so reports may come twice or late; those change nothing, nor do
    implausible ones.
    """
    if now_s < watch.at_s:  # the clock was set back
        watch = replace(watch, at_s=now_s, is_settled=False)
    if generation != watch.generation or samples <= watch.samples or now_s <= watch.at_s:
        return watch, None
    span_s = now_s - watch.at_s
    if samples - watch.samples > FASTEST * span_s:
        return watch, None
    restart = replace(watch, step=step, samples=samples, at_s=now_s, is_settled=True)
    if not watch.is_settled:
        is_settled = span_s >= SETTLE_S and step - watch.step >= SETTLE_STEPS
        return (restart if is_settled else watch), None
    if span_s < OBSERVE_S:
        return watch, None
    return restart, (samples - watch.samples) / span_s


def add(
    known: tuple[SizeThroughput, ...],
    size: int,
    samples_per_s: float,
    now_s: float,
    batch: int = 0,
) -> tuple[SizeThroughput, ...]:
    """Fold one observation into the statistics of its size and batch, which stay sorted."""
    by_size = {(entry.size, entry.batch): entry for entry in known}
    before = by_size.get((size, batch))
    if before is None:
        while len(by_size) >= MAX_SIZES:
            del by_size[min(by_size, key=lambda n: (by_size[n].seen_s, n))]
        before = SizeThroughput(size=size, batch=batch)
    by_size[size, batch] = _fold(before, samples_per_s, now_s)
    return tuple([by_size[key] for key in sorted(by_size)])


def _fold(before: SizeThroughput, samples_per_s: float, now_s: float) -> SizeThroughput:
    """Welford's update, after fading the known observations to fit the window."""
    fade = 1.0
    if before.count > 0.0:
        fade = min(1.0, (WINDOW - 1.0) / before.count)
    count, m2 = fade * before.count + 1.0, fade * before.m2
    if before.count >= USUAL_NOISE_WEIGHT + 1.0:
        reach = CLIP_SD * deviation(before)
        low, high = before.mean_samples_per_s - reach, before.mean_samples_per_s + reach
        samples_per_s = min(max(low, samples_per_s), high)
    off = samples_per_s - before.mean_samples_per_s
    mean = before.mean_samples_per_s + off / count
    return replace(
        before,
        count=count,
        mean_samples_per_s=mean,
        m2=m2 + off * (samples_per_s - mean),
        seen_s=now_s,
    )


def deviation(known: SizeThroughput) -> float:
    """Standard deviation of an observation, with a prior for few observations."""
    usual = USUAL_NOISE * known.mean_samples_per_s
    squares = known.m2 + USUAL_NOISE_WEIGHT * usual * usual
    return math.sqrt(squares / (max(0.0, known.count - 1.0) + USUAL_NOISE_WEIGHT))


def error_of(known: SizeThroughput) -> float:
    """Relative standard error of the mean."""
    if known.count <= 0.0 or known.mean_samples_per_s <= 0.0:
        return 1.0
    error = deviation(known) / known.mean_samples_per_s / math.sqrt(known.count)
    return max(LEAST_ERROR, error)
