"""Learns costs and throughput from rescales and progress.

A new measurement replaces a known one only if it differs enough, so that decisions do not oscillate
with noise. Throughput statistics are kept by size (``bftrainer.decide.throughput.curves``);
decisions get a mean when it is first known, when it has moved by more than noise, and when its
error has halved. Workers' reports are bounded by what their trainer declared or showed before
(``bftrainer.decide.throughput.plausibility``).
Used by ``trainers``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from bftrainer.decide.throughput.curves import MAX_SIZES, Observation, add, add_sample, error_of
from bftrainer.decide.throughput.plausibility import is_plausible, most_believed
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.fleet.generations.state import PLANNED
from bftrainer.ground.protocol import Progress
from bftrainer.model.trainer import MeasuredCosts, RestartCosts, TrainerRecord
from milp.problem import Curve

NOISE = 0.25  # smallest relative change of a pause that counts
FIRST_COUNT = 3.0  # observations until a size counts as known
TOLD_SHARE = 0.02  # smallest relative change of a throughput that counts
TOLD_ERRORS = 3.0  # the same in standard errors
PRECISER = 4.0  # factor in observations that halves the error
GREATEST_NOISE = 1e9  # samples; greater reported noise scales are cut to this
LONGEST_PAUSE_S = 3600.0  # longer reported pauses are cut to this


class SizeAndBatch(NamedTuple):
    """What a throughput was measured at."""

    size: int
    batch: int  # the global one; 0: the trainer admits only its own


def learn_rescale(costs: MeasuredCosts, done: Rescaled) -> MeasuredCosts:
    """Learn the pause of a grow or a shrink; starts and losses are ignored."""
    if done.is_restart:
        return _learn_restart(costs, done)
    if done.reason != PLANNED or not done.size_before:
        return costs
    if done.size > done.size_before:
        return replace(costs, rescale_up_s=blend(costs.rescale_up_s, done.pause_s))
    if done.size < done.size_before:
        return replace(costs, rescale_down_s=blend(costs.rescale_down_s, done.pause_s))
    return costs


def _learn_restart(costs: MeasuredCosts, done: Rescaled) -> MeasuredCosts:
    """Learn the time to stop and start; a resize in either direction costs both.

    Before the first resize only the start is known, a lower bound of the cost.
    """
    restart = costs.restart or RestartCosts()
    if not done.size_before:
        start_s = blend(restart.start_s, done.formation_s)
        restart = replace(restart, start_s=start_s)
        if restart.stop_s is not None:
            return replace(costs, restart=restart)
        return replace(costs, restart=restart, rescale_up_s=start_s, rescale_down_s=start_s)
    if done.unsaved:
        restart = replace(restart, unsaved=restart.unsaved + 1, unsaved_reason=done.unsaved)
    if done.reason != PLANNED:
        return replace(costs, restart=restart)
    stop_s = blend(restart.stop_s, done.stop_s)
    start_s = blend(restart.start_s, done.pause_s - done.stop_s)
    restart = replace(restart, stop_s=stop_s, start_s=start_s)
    whole_s = stop_s + start_s
    return replace(costs, restart=restart, rescale_up_s=whole_s, rescale_down_s=whole_s)


def learn_progress(
    watch: Observation | None, record: TrainerRecord, said: Progress, n_members: int, now_s: float
) -> tuple[Observation | None, MeasuredCosts]:
    """Process a member's report; return the observation and the costs."""
    progress = record.progress
    if watch is None:
        # The daemon has just started; the generation was already running.
        if said.generation != progress.generation or not 0 < progress.size == n_members:
            return None, record.costs
        return watch_from(said, progress.size, progress.batch, now_s), record.costs
    costs = learn_noise(record.costs, said)
    watch, observed = add_sample(
        watch, generation=said.generation, step=said.step, samples=said.samples, now_s=now_s
    )
    if observed is None:
        return watch, costs
    curve = record.spec.curve
    return watch, learn_throughput(costs, watch.size, observed, now_s, curve, watch.batch)


def watch_from(said: Progress | Rescaled, size: int, batch: int, now_s: float) -> Observation:
    """Begin an observation at a complete generation, or at a report, ignoring what was before."""
    return Observation(
        generation=said.generation,
        size=size,
        step=said.step,
        samples=said.samples,
        at_s=now_s,
        batch=batch,
    )


def learn_throughput(
    costs: MeasuredCosts,
    size: int,
    samples_per_s: float,
    now_s: float,
    declared: Curve | None = None,
    batch: int = 0,
) -> MeasuredCosts:
    """Add one observation at a size and, if the trainer admits several, with a batch."""
    if size < 1 or not is_plausible(size, samples_per_s):
        return costs
    rates = [(item.size, item.mean_samples_per_s) for item in costs.throughput]
    if declared is not None:
        rates += zip(declared.sizes, declared.samples_per_s, strict=True)
    samples_per_s = min(samples_per_s, most_believed(rates, size))
    costs = replace(costs, throughput=add(costs.throughput, size, samples_per_s, now_s, batch))
    return _tell(costs, size, batch, at_least=FIRST_COUNT)


def learn_leaving(costs: MeasuredCosts, size: int, batch: int = 0) -> MeasuredCosts:
    """Publish the mean of a size that is being left: one observation suffices."""
    return _tell(costs, size, batch, at_least=1.0)


def learn_noise(costs: MeasuredCosts, said: Progress) -> MeasuredCosts:
    """Publish a noise scale that differs enough from the known one."""
    noise_scale = min(said.noise_scale, GREATEST_NOISE)
    if noise_scale > 0.0 and abs(noise_scale - costs.noise_scale) > NOISE * costs.noise_scale:
        return replace(costs, noise_scale=noise_scale)
    return costs


def _tell(costs: MeasuredCosts, size: int, batch: int, *, at_least: float) -> MeasuredCosts:
    """Publish the mean of a size and batch to decisions if it has changed enough."""
    published = published_rates(costs, has_batches=bool(batch))
    statistics = {SizeAndBatch(item.size, item.batch): item for item in costs.throughput}
    key = SizeAndBatch(size, batch)
    learnt = statistics.get(key)
    if learnt is None or learnt.count < at_least:
        return costs
    before, error = published.get(key), error_of(learnt)
    if before is not None and learnt.told_count > 0.0:
        change = abs(learnt.mean_samples_per_s / before - 1.0)
        is_news = change > max(TOLD_SHARE, TOLD_ERRORS * error)
        if not is_news and learnt.count < PRECISER * learnt.told_count:
            return costs
    published[key] = learnt.mean_samples_per_s
    if len(published) > MAX_SIZES:  # drop those that the statistics have dropped
        for outdated in published.keys() - statistics.keys():
            del published[outdated]
    statistics[key] = replace(learnt, told_count=learnt.count, told_error=error)
    by_size, by_batch = dict[int, float](), list[tuple[int, int, float]]()
    for at, rate in sorted(published.items()):
        by_size[at.size] = max(rate, by_size.get(at.size, 0.0))
        if batch:
            by_batch.append((at.size, at.batch, rate))
    return replace(
        costs,
        samples_per_s_by_size=tuple(by_size.items()),
        samples_per_s_by_batch=tuple(by_batch),
        throughput=tuple(statistics.values()),
    )


def published_rates(costs: MeasuredCosts, *, has_batches: bool) -> dict[SizeAndBatch, float]:
    """Return the samples per second that decisions read; of one batch: as batch 0."""
    rates: dict[SizeAndBatch, float] = {}
    if has_batches:
        for size, batch, rate in costs.samples_per_s_by_batch:
            rates[SizeAndBatch(size, batch)] = rate
    else:
        for size, rate in costs.samples_per_s_by_size:
            rates[SizeAndBatch(size, 0)] = rate
    return rates


def blend(before_s: float | None, pause_s: float) -> float:
    """Average a new pause with the known one if it differs by more than noise."""
    pause_s = min(max(0.0, pause_s), LONGEST_PAUSE_S)  # 0 for NaN
    if before_s is None:
        return pause_s
    if abs(pause_s - before_s) <= NOISE * before_s:
        return before_s
    return 0.5 * (before_s + pause_s)
