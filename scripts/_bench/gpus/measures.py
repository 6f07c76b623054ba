"""Runs of the same jobs on clusters with GPUs → what was idle, lent, given back and delayed. Pure.

All times are seconds from the start of a run. GPUs are counted, not numbered: which of a node's
GPUs are idle does not matter to anybody here.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

from _bench.stats import RESAMPLES, Interval

LOST_CYCLE_SHARE = 0.8  # of a bf_interval later than without bftrainer
TAKEN_WITHIN_S = 10.0  # an ordinary job starts on the node of a pilot that was given back for it
APART_S = 1.0  # starts that are closer have no order


@dataclass(frozen=True, slots=True, kw_only=True)
class OrdinaryJob:
    """One ordinary job, or task of an array, of a run."""

    key: tuple[int, int]  # item of the workload, task: the same in all arms
    gpus_per_node: int
    submitted_s: float
    started_s: float
    ended_s: float
    nodes: tuple[str, ...]
    cpus: int = 0  # of each of them
    memory_mb: int = 0  # likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """One pilot of a run that started."""

    node: str
    gpus: int
    started_s: float
    ended_s: float
    is_preempted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRun:
    """One arm under one seed."""

    arm: str
    seed: int
    nodes: tuple[str, ...]
    gpus_per_node: int
    span_s: float  # what is counted: from the start to the last submission
    bf_interval_s: float
    jobs: tuple[OrdinaryJob, ...]
    pilots: tuple[Pilot, ...] = ()
    n_submitted: int = 0  # pilots
    n_requests: int = 0  # that slurmctld answered in the span
    cpus_per_node: int = 0  # 0: CPUs and memory were not recorded
    memory_mb: int = 0  # of a node


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """GPU-seconds without an ordinary job, and those of them that pilots had."""

    whole_gpu_s: float  # on nodes without any ordinary job
    leftover_gpu_s: float  # on nodes of which ordinary jobs use a part
    lent_whole_gpu_s: float
    lent_leftover_gpu_s: float

    @property
    def gpu_s(self) -> float:
        """All of it."""
        return self.whole_gpu_s + self.leftover_gpu_s

    @property
    def lent_gpu_s(self) -> float:
        """All that was lent."""
        return self.lent_whole_gpu_s + self.lent_leftover_gpu_s

    @property
    def lent_share(self) -> float:
        """Lent, of all that was idle."""
        return self.lent_gpu_s / self.gpu_s if self.gpu_s else math.nan


def idle_of(run: ArmRun) -> Idle:
    """Return what was idle within the span, node by node."""
    sums = [0.0, 0.0, 0.0, 0.0]
    for node in run.nodes:
        jobs = [job for job in run.jobs if node in job.nodes]
        pilots = [pilot for pilot in run.pilots if pilot.node == node]
        spans = [(job.started_s, job.ended_s) for job in jobs]
        spans += [(pilot.started_s, pilot.ended_s) for pilot in pilots]
        moments = {0.0, run.span_s}
        for span in spans:
            moments.update(min(max(at_s, 0.0), run.span_s) for at_s in span)
        for from_s, to_s in pairwise(sorted(moments)):
            n_used = sum(job.gpus_per_node for job in jobs if job.started_s <= from_s < job.ended_s)
            n_lent = sum(
                pilot.gpus for pilot in pilots if pilot.started_s <= from_s < pilot.ended_s
            )
            n_idle = max(0, run.gpus_per_node - n_used)
            kind = 1 if n_used else 0
            sums[kind] += n_idle * (to_s - from_s)
            sums[2 + kind] += min(n_idle, n_lent) * (to_s - from_s)
    return Idle(
        whole_gpu_s=sums[0],
        leftover_gpu_s=sums[1],
        lent_whole_gpu_s=sums[2],
        lent_leftover_gpu_s=sums[3],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOvers:
    """How pilots left within the span."""

    given_back: int  # cancelled, and an ordinary job started there soon after
    preempted: int  # by Slurm
    in_vain: int  # cancelled, and nobody came
    gpus: int = 0  # of all these: as many workers were lost


def hand_overs_of(run: ArmRun) -> HandOvers:
    """Count the pilots that left, by what followed."""
    starts_on: dict[str, list[float]] = {node: [] for node in run.nodes}
    for job in run.jobs:
        for node in job.nodes:
            starts_on[node].append(job.started_s)
    for starts_s in starts_on.values():
        starts_s.sort()
    given_back = preempted = in_vain = gpus = 0
    for pilot in run.pilots:
        if not 0.0 <= pilot.ended_s <= run.span_s:
            continue
        gpus += pilot.gpus
        starts_s = starts_on[pilot.node]
        following = bisect_left(starts_s, pilot.ended_s)
        if pilot.is_preempted:
            preempted += 1
        elif following < len(starts_s) and starts_s[following] - pilot.ended_s <= TAKEN_WITHIN_S:
            given_back += 1
        else:
            in_vain += 1
    return HandOvers(given_back=given_back, preempted=preempted, in_vain=in_vain, gpus=gpus)


def waits_of(run: ArmRun) -> dict[tuple[int, int], float]:
    """Return how long each job waited, s."""
    return {job.key: job.started_s - job.submitted_s for job in run.jobs}


def added_wait(pairs: Sequence[tuple[ArmRun, ArmRun]]) -> Interval:
    """Return how much longer jobs waited in the second run of each pair, on average.

    Jobs of one seed wait for each other, so that they are no independent draws: whole seeds are
    resampled, and the jobs of each; with one seed the interval is of its jobs alone.
    """
    by_seed = []
    for without, having in pairs:
        before, after = waits_of(without), waits_of(having)
        by_seed.append([after[key] - before[key] for key in before.keys() & after.keys()])
    chance = random.Random(1)  # noqa: S311 - statistics, not a secret
    means = []
    for _ in range(RESAMPLES):
        seeds = [chance.choice(by_seed) for _ in by_seed]
        means.append(fmean(fmean(chance.choices(waits, k=len(waits))) for waits in seeds))
    return Interval.of_samples(fmean(fmean(waits) for waits in by_seed), means)


def lost_cycles(run: ArmRun, control: ArmRun) -> int:
    """Count jobs that start most of a cycle later than in a run without bftrainer."""
    control_s = {job.key: job.started_s for job in control.jobs}
    limit_s = LOST_CYCLE_SHARE * run.bf_interval_s
    return sum(job.started_s - control_s.get(job.key, math.inf) > limit_s for job in run.jobs)


def reordered_share(run: ArmRun, control: ArmRun) -> float:
    """Return the share of pairs of jobs that start in the other order than without bftrainer."""
    starts_s: Mapping[tuple[int, int], float] = {job.key: job.started_s for job in control.jobs}
    starts = sorted((starts_s[job.key], job.started_s) for job in run.jobs if job.key in starts_s)
    n_pairs = n_reordered = 0
    for position, (before_s, after_s) in enumerate(starts):
        for other_before_s, other_after_s in starts[position + 1 :]:
            if other_before_s - before_s <= APART_S:
                continue
            n_pairs += 1
            n_reordered += after_s - other_after_s > APART_S
    return n_reordered / n_pairs if n_pairs else math.nan
