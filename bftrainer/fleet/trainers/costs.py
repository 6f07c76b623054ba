"""Learns costs and throughput from rescales and progress, and limits how often nodes change.

A new measurement replaces a known one only if it differs enough, so that decisions do not oscillate
with noise. Throughput statistics are kept by size (``bftrainer.decide.throughput.curves``);
decisions get a mean when it is first known, when it has moved by more than noise, and when its
error has halved. Workers' reports are bounded by what their trainer declared or showed before
(``bftrainer.decide.throughput.plausibility``).

Complete generations come in; the trainers that have used up the policy's ``rescale_budget``, and
until when, go out to decisions. Losses, give-backs and shrinks do not count: they are not chosen
for the trainer, and a plan that moves nodes back and forth shows in the nodes that join. Used by
``trainers``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from bftrainer.decide.throughput.curves import MAX_SIZES, Observation, add, add_sample, error_of
from bftrainer.decide.throughput.plausibility import is_plausible, most_believed
from bftrainer.elastic.protocol import Progress
from bftrainer.fleet.generations.members import Rescaled
from bftrainer.model.trainer import MeasuredCosts, RestartCosts, TrainerRecord
from milp.problem import Curve

NOISE = 0.25  # smallest relative change of a pause that counts
FIRST_COUNT = 3.0  # observations until a size counts as known
TOLD_SHARE = 0.02  # smallest relative change of a throughput that counts
TOLD_ERRORS = 3.0  # the same in standard errors
PRECISER = 4.0  # factor in observations that halves the error
GREATEST_NOISE = 1e9  # samples; greater reported noise scales are cut to this
LONGEST_PAUSE_S = 3600.0  # longer reported pauses are cut to this


def learn_rescale(costs: MeasuredCosts, done: Rescaled) -> MeasuredCosts:
    """Learn the pause of a grow or a shrink; starts and losses are ignored."""
    if done.is_restart:
        return _learn_restart(costs, done)
    if done.reason != "planned" or not done.size_before:
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
    known = costs.restart or RestartCosts()
    if not done.size_before:
        start_s = blend(known.start_s, done.formation_s)
        restart = replace(known, start_s=start_s)
        if known.stop_s is not None:
            return replace(costs, restart=restart)
        return replace(costs, restart=restart, rescale_up_s=start_s, rescale_down_s=start_s)
    if done.unsaved:
        known = replace(known, unsaved=known.unsaved + 1, unsaved_reason=done.unsaved)
    if done.reason != "planned":
        return replace(costs, restart=known)
    restart = replace(
        known,
        stop_s=blend(known.stop_s, done.stop_s),
        start_s=blend(known.start_s, done.pause_s - done.stop_s),
    )
    both_s = (restart.stop_s or 0.0) + (restart.start_s or 0.0)
    return replace(costs, restart=restart, rescale_up_s=both_s, rescale_down_s=both_s)


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
    known = [(one.size, one.mean_samples_per_s) for one in costs.throughput]
    if declared is not None:
        known += zip(declared.sizes, declared.samples_per_s, strict=True)
    samples_per_s = min(samples_per_s, most_believed(known, size))
    costs = replace(costs, throughput=add(costs.throughput, size, samples_per_s, now_s, batch))
    return _tell(costs, size, batch, at_least=FIRST_COUNT)


def learn_leaving(costs: MeasuredCosts, size: int, batch: int = 0) -> MeasuredCosts:
    """Publish the mean of a size that is being left: one observation suffices."""
    return _tell(costs, size, batch, at_least=1.0)


def learn_noise(costs: MeasuredCosts, said: Progress) -> MeasuredCosts:
    """Publish a noise scale that differs enough from the known one."""
    new, known = min(said.noise_scale, GREATEST_NOISE), costs.noise_scale
    is_news = new > 0.0 and abs(new - known) > NOISE * known
    return replace(costs, noise_scale=new) if is_news else costs


def _tell(costs: MeasuredCosts, size: int, batch: int, *, at_least: float) -> MeasuredCosts:
    """Publish the mean of a size and batch to decisions if it has changed enough."""
    known = next((s for s in costs.throughput if (s.size, s.batch) == (size, batch)), None)
    if known is None or known.count < at_least:
        return costs
    told = {(n, b): rate for n, b, rate in costs.samples_per_s_by_batch}
    if not batch:
        told = {(n, 0): rate for n, rate in costs.samples_per_s_by_size}
    before, error = told.get((size, batch)), error_of(known)
    if before is not None and known.told_count > 0.0:
        moved = abs(known.mean_samples_per_s / before - 1.0)
        is_news = moved > max(TOLD_SHARE, TOLD_ERRORS * error)
        if not is_news and known.count < PRECISER * known.told_count:
            return costs
    told[size, batch] = known.mean_samples_per_s
    if len(told) > MAX_SIZES:  # drop those that the statistics have dropped
        kept = {(one.size, one.batch) for one in costs.throughput}
        told = {key: rate for key, rate in told.items() if key in kept}
    fresh = replace(known, told_count=known.count, told_error=error)
    by_size: dict[int, float] = {}
    for (n, _), rate in sorted(told.items()):
        by_size[n] = max(rate, by_size.get(n, 0.0))
    return replace(
        costs,
        samples_per_s_by_size=tuple(by_size.items()),
        samples_per_s_by_batch=tuple((*key, r) for key, r in sorted(told.items()) if batch),
        throughput=tuple(fresh if one is known else one for one in costs.throughput),
    )


def blend(known: float | None, measured: float) -> float:
    """Average a new pause with the known one if it differs by more than noise."""
    measured = min(max(0.0, measured), LONGEST_PAUSE_S)  # 0 for NaN
    if known is None:
        return measured
    if abs(measured - known) <= NOISE * known:
        return known
    return 0.5 * (known + measured)


SPAN_S = 3600.0
PLANNED = "planned"


class RescaleBudget:
    """Planned rescales that gave a trainer new nodes, within the last hour."""

    def __init__(self, limit: int | None) -> None:
        """Allow ``limit`` per trainer and hour; None: unlimited."""
        self.limit = limit
        self._at_s: dict[str, deque[float]] = {}
        self._nodes: dict[str, frozenset[str]] = {}

    def on_rescaled(self, trainer_id: str, done: Rescaled, now_s: float) -> None:
        """A generation is complete."""
        before, after = self._nodes.get(trainer_id, frozenset()), frozenset(done.nodes)
        self._nodes[trainer_id] = after
        has_joined = done.size > done.size_before or bool(before and after - before)
        if self.limit and done.size_before and done.reason == PLANNED and has_joined:
            kept = deque(self._at_s.get(trainer_id, ()), self.limit)
            kept.append(now_s)
            self._at_s[trainer_id] = kept

    def forget(self, trainer_id: str) -> None:
        """Drop a trainer that is final."""
        self._at_s.pop(trainer_id, None)
        self._nodes.pop(trainer_id, None)

    def used_up(self, now_s: float) -> Mapping[str, float]:
        """Return the trainers without rescales left, and when each has one again."""
        limit = self.limit or 0  # None: unlimited
        last = {i: list(times)[-limit:] for i, times in sorted(self._at_s.items()) if limit}
        return {
            trainer_id: times[0] + SPAN_S
            for trainer_id, times in last.items()
            # A time in the future: the clock was set back.
            if len(times) == limit and times[-1] <= now_s < times[0] + SPAN_S
        }

    def in_words(self, trainer_id: str, now_s: float) -> tuple[str, ...]:
        """Say that a trainer keeps its nodes for now, if it does."""
        until_s = self.used_up(now_s).get(trainer_id)
        if until_s is None:
            return ()
        at = time.strftime("%H:%M", time.localtime(until_s))
        return (
            (
                f"It was given other nodes {self.limit} times within an hour (rescale_budget):"
                f" until {at} it keeps those it has and gets no others."
            ),
        )
