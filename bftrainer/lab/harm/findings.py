"""Adds up segments: what is harvested, what jobs notice, and what chance alone does. Pure.

Intervals are 95%: a percentile bootstrap over the blocks (B. Efron, R. Tibshirani, An Introduction
to the Bootstrap, 1993, chapter 13) of a ratio, job-seconds of added wait by jobs submitted.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain

from bftrainer.lab.harm.experiment import BlockWaits, SegmentOutcome, TypeHarvest
from bftrainer.lab.harm.replica import PlayedJob, Replica
from bftrainer.lab.harm.segments import AS_IS, LEND
from bftrainer.lab.site.arms import Span
from bftrainer.lab.site.sharing import NodeSet
from bftrainer.model.parts import Lend

RESAMPLES = 2000
LOW, HIGH = 0.025, 0.975
HOUR_S, DAY_H = 3600.0, 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitChange:
    """Seconds per job, with the 95% interval; null: too few blocks to tell."""

    mean_s: float  # added; below 0: waited less
    low_s: float | None  # lower end of the interval
    high_s: float | None  # upper end of the interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHarm:
    """The change that jobs of a partition would notice."""

    partition: str  # its name; "" stands for all together
    node_types: tuple[str, ...]  # of its nodes
    jobs: int  # submitted in the blocks
    wait_s: float  # mean, without bftrainer
    logged_wait_s: float | None  # mean of the same log; null: drawn closer, or not told
    added: WaitChange  # beside bftrainer
    by_chance: WaitChange  # of two runs without bftrainer
    is_beyond_chance: bool  # the interval lacks 0, and the mean is beyond that of chance


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeYield:
    """The harvest of a type of nodes, a day."""

    node_type: str  # as in the policy; cpu: without GPUs
    nodes: int  # of this type
    idle_node_hours: float  # without an ordinary job
    held_node_hours: float  # by pilots; a GPU counts as its share of the node
    trained_node_hours: float  # after the start of workers
    idle_gpu_hours: float  # of GPUs that no job uses, beside jobs or on idle nodes
    held_gpu_hours: float  # lent to pilots
    trained_gpu_hours: float  # after the start of workers
    leftover_gpu_hours: float  # unused GPUs of nodes with jobs: whole nodes leave them unlent
    energy_kwh: float | None  # of the trained time; null: the draw is not given


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingEffect:
    """The same blocks with one setting changed."""

    setting: str  # the key of the policy, or the item of SchedulerParameters; "" as it is
    value: str  # tried
    hours: float  # of the site's time, that were counted
    held_node_hours: float  # a day
    trained_node_hours: float  # a day
    jobs: int  # submitted in the blocks
    added: WaitChange  # of all jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class LendArm:
    """What one value of the policy's lend brings a day, and what jobs notice of it."""

    lend: str  # the value
    held_gpu_hours: float  # lent to pilots, by all types of nodes
    idle_gpu_hours: float  # of GPUs that no job uses
    partitions: tuple[PartitionHarm, ...]  # with jobs in the blocks
    everybody: PartitionHarm  # the jobs of all partitions
    node_types: tuple[TypeYield, ...]  # in the order of the site's nodes
    pilots_per_day: float  # requested
    preempted_per_day: float  # pilots that ordinary jobs ended


@dataclass(frozen=True, slots=True, kw_only=True)
class LendProposal:
    """GPUs lent one by one beside whole nodes, on the same blocks."""

    nodes: int  # that ordinary jobs share and whose GPUs can be lent one by one
    gpus: int  # of these nodes
    hours: float  # of the site's time, that were counted
    blocks: int  # that were played with each of the two
    gained_gpu_hours: float  # lent more than by whole nodes, a day
    now: LendArm  # whole nodes
    proposed: LendArm  # lend: auto


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmFindings:
    """All that is measured."""

    lend: str  # what is lent: the policy's key
    hours: float  # counted of the site's time
    blocks: int  # that were played with and without bftrainer
    partitions: tuple[PartitionHarm, ...]  # with jobs in the blocks
    everybody: PartitionHarm  # the jobs of all partitions
    node_types: tuple[TypeYield, ...]  # in the order of the site's nodes
    settings: tuple[SettingEffect, ...]  # the first: as they are, on the same blocks
    proposal: LendProposal | None  # null: no other value of lend was played
    pilots_per_day: float  # requested
    preempted_per_day: float  # pilots that ordinary jobs ended
    cpu_s: float  # processor time


Blocks = Sequence[Mapping[str, BlockWaits]]


def findings(
    replica: Replica,
    outcomes: Iterable[SegmentOutcome],
    spans: Sequence[Span],
    *,
    is_closer: bool,
    watts: Mapping[str, float],
    seed: int,
    lend: str = Lend.NODES,
) -> HarmFindings:
    """Add up.

    Args:
        replica: the site.
        outcomes: of all segments, with all settings.
        spans: from when until when blocks were counted, in seconds of the log's span.
        is_closer: submissions were drawn closer: the log's waits are no comparison.
        watts: that a node of a type draws; "" stands for the others.
        seed: of the resampling.
        lend: the policy's, with which the settings as they are were played.
    """
    in_order = sorted(outcomes, key=lambda o: (o.variant, o.value, o.number))
    # The proposal is told apart: it is no setting among others.
    as_is = [outcome for outcome in in_order if outcome.variant == AS_IS]
    proposed = [outcome for outcome in in_order if outcome.variant == LEND]
    with_settings = [outcome for outcome in in_order if outcome.variant != LEND]
    logged = _LoggedWaits(replica.jobs, () if is_closer else spans)
    adding = _Adding(replica, logged, watts, seed)
    proposal: LendProposal | None = None
    if proposed:
        proposal = _proposal(adding, as_is, proposed)
    arm = adding.arm(lend, as_is)
    days = _days(as_is)
    return HarmFindings(
        lend=lend,
        hours=days * DAY_H,
        blocks=len(_blocks_of(as_is)),
        partitions=arm.partitions,
        everybody=arm.everybody,
        node_types=arm.node_types,
        settings=tuple(_effects(with_settings, seed)),
        proposal=proposal,
        pilots_per_day=arm.pilots_per_day,
        preempted_per_day=arm.preempted_per_day,
        cpu_s=sum(outcome.cpu_s for outcome in in_order),
    )


def _counted_h(outcomes: Iterable[SegmentOutcome]) -> float:
    return sum(outcome.counted_s for outcome in outcomes) / HOUR_S


def _days(outcomes: Iterable[SegmentOutcome]) -> float:
    return _counted_h(outcomes) / DAY_H


def _blocks_of(outcomes: Iterable[SegmentOutcome]) -> Blocks:
    return list(chain.from_iterable(outcome.blocks for outcome in outcomes))


@dataclass(frozen=True, slots=True)
class _Adding:
    """What it takes to add up segments that were played alike."""

    replica: Replica
    logged: _LoggedWaits
    watts: Mapping[str, float]
    seed: int

    def arm(self, lend: str, outcomes: Sequence[SegmentOutcome]) -> LendArm:
        """Add up."""
        blocks = _blocks_of(outcomes)
        harms = [self._harm(p.name, p.nodes, blocks) for p in self.replica.slurm.partitions]
        every = sum(kind.nodes for kind in self.replica.node_types)
        node_types = tuple(_yields(self.replica, outcomes, self.watts))
        days = _days(outcomes)
        return LendArm(
            lend=lend,
            held_gpu_hours=sum(kind.held_gpu_hours for kind in node_types),
            idle_gpu_hours=sum(kind.idle_gpu_hours for kind in node_types),
            partitions=tuple(harm for harm in harms if harm.jobs or harm.wait_s),
            everybody=self._harm("", every, blocks),
            node_types=node_types,
            pilots_per_day=sum(outcome.pilots for outcome in outcomes) / days,
            preempted_per_day=sum(outcome.preempted for outcome in outcomes) / days,
        )

    def _harm(self, partition: str, nodes: NodeSet, blocks: Blocks) -> PartitionHarm:
        jobs, wait_s = 0, 0.0
        added_s: list[tuple[int, float]] = []  # by block
        chance_s: list[tuple[int, float]] = []
        for block in blocks:
            waits = _of_block(block, partition)
            jobs += waits.jobs
            wait_s += waits.without_s
            added_s.append((waits.jobs, waits.beside_s - waits.without_s))
            chance_s.append((waits.jobs, waits.again_s - waits.without_s))
        difference, chance = change(added_s, self.seed), change(chance_s, self.seed)
        return PartitionHarm(
            partition=partition,
            node_types=tuple(k.name for k in self.replica.node_types if k.nodes & nodes),
            jobs=jobs,
            wait_s=wait_s / max(1, jobs),
            logged_wait_s=self.logged.mean_s(partition),
            added=difference,
            by_chance=chance,
            is_beyond_chance=is_beyond(difference, chance),
        )


def _proposal(
    adding: _Adding, as_is: Sequence[SegmentOutcome], proposed: Sequence[SegmentOutcome]
) -> LendProposal:
    """Hold lend: auto beside whole nodes, on the segments that were played with both."""
    numbers = {outcome.number for outcome in proposed}
    # The log's waits are of all segments, so they are no comparison for these.
    without_log = replace(adding, logged=_LoggedWaits((), ()))
    now = without_log.arm(Lend.NODES, [outcome for outcome in as_is if outcome.number in numbers])
    then = without_log.arm(Lend.AUTO, proposed)
    shared = adding.replica.shared_lending
    return LendProposal(
        nodes=len(shared),
        gpus=sum(node.gpus for node in shared),
        hours=_days(proposed) * DAY_H,
        blocks=len(_blocks_of(proposed)),
        gained_gpu_hours=then.held_gpu_hours - now.held_gpu_hours,
        now=now,
        proposed=then,
    )


def _of_block(block: Mapping[str, BlockWaits], partition: str) -> BlockWaits:
    """Return the waits of a partition's jobs; "" is all of them."""
    jobs, without_s, beside_s, again_s = 0, 0.0, 0.0, 0.0
    for name, waits in block.items():
        if partition in ("", name):
            jobs += waits.jobs
            without_s += waits.without_s
            beside_s += waits.beside_s
            again_s += waits.again_s
    return BlockWaits(jobs=jobs, without_s=without_s, beside_s=beside_s, again_s=again_s)


def change(blocks: Sequence[tuple[int, float]], seed: int) -> WaitChange:
    """Return the change of the wait per job; blocks are jobs and job-seconds."""
    jobs, waits_s = 0, 0.0
    for n_jobs, wait_s in blocks:
        jobs += n_jobs
        waits_s += wait_s
    mean_s = waits_s / max(1, jobs)
    if len(blocks) < 2 or not jobs:
        return WaitChange(mean_s=mean_s, low_s=None, high_s=None)
    chance = random.Random(seed)  # noqa: S311 - a resampling, not a secret
    means = sorted(_mean_s(chance.choices(blocks, k=len(blocks))) for _ in range(RESAMPLES))
    return WaitChange(
        mean_s=mean_s,
        low_s=means[math.floor(LOW * RESAMPLES)],
        high_s=means[math.ceil(HIGH * RESAMPLES) - 1],
    )


def _mean_s(blocks: Iterable[tuple[int, float]]) -> float:
    jobs, total_s = 0, 0.0
    for count, seconds in blocks:
        jobs += count
        total_s += seconds
    return total_s / max(1, jobs)


def is_beyond(difference: WaitChange, chance: WaitChange) -> bool:
    """Return whether a change is clear, and beyond the interval of two runs without bftrainer."""
    if None in (difference.low_s, difference.high_s, chance.low_s, chance.high_s):
        return False
    low_s, high_s = difference.low_s or 0.0, difference.high_s or 0.0
    is_longer = low_s > 0.0 and difference.mean_s > (chance.high_s or 0.0)
    return is_longer or (high_s < 0.0 and difference.mean_s < (chance.low_s or 0.0))


class _LoggedWaits:
    """The waits of the log itself in the same spans, counted as those of the blocks are."""

    def __init__(self, jobs: Iterable[PlayedJob], spans: Sequence[Span]) -> None:
        self._waited_s = defaultdict[str, float](float)
        self._jobs = Counter[str]()
        for job in jobs:
            submit_s = job.spec.submit_s
            for from_s, to_s in spans:
                waited_s = max(0.0, min(job.start_s, to_s) - max(submit_s, from_s))
                for name in (job.spec.partition, ""):
                    self._waited_s[name] += waited_s
                    self._jobs[name] += from_s <= submit_s < to_s

    def mean_s(self, partition: str) -> float | None:
        """Return seconds per job that was submitted; None: there is none."""
        if not self._jobs[partition]:
            return None
        return self._waited_s[partition] / self._jobs[partition]


def _yields(
    replica: Replica, outcomes: Sequence[SegmentOutcome], watts: Mapping[str, float]
) -> Iterable[TypeYield]:
    counted_h = _counted_h(outcomes)
    for kind in replica.node_types:
        harvests = [outcome.harvest[kind.name] for outcome in outcomes]
        total = _together(harvests)
        trained_h = _per_day(total.trained_s, counted_h)
        idle_gpu_s = sum(h.idle_s * kind.gpus + h.leftover_gpu_s for h in harvests)
        energy_kwh, draw = None, watts.get(kind.name, watts.get(""))
        if draw is not None:
            energy_kwh = draw * trained_h / 1000.0
        yield TypeYield(
            node_type=kind.name,
            nodes=kind.n_nodes,
            idle_node_hours=_per_day(total.idle_s, counted_h),
            held_node_hours=_per_day(total.held_s, counted_h),
            trained_node_hours=trained_h,
            idle_gpu_hours=_per_day(idle_gpu_s, counted_h),
            held_gpu_hours=_per_day(total.held_gpu_s, counted_h),
            trained_gpu_hours=_per_day(total.trained_gpu_s, counted_h),
            leftover_gpu_hours=_per_day(total.leftover_gpu_s, counted_h),
            energy_kwh=energy_kwh,
        )


def _together(harvests: Iterable[TypeHarvest]) -> TypeHarvest:
    """Return the sum of several harvests."""
    sums = dict.fromkeys((field.name for field in fields(TypeHarvest)), 0.0)
    for harvest in harvests:
        for name, seconds in asdict(harvest).items():
            sums[name] += seconds
    return TypeHarvest(**sums)


def _per_day(seconds: float, counted_h: float) -> float:
    """Return hours a day."""
    return seconds / HOUR_S / counted_h * DAY_H


def _effects(outcomes: Sequence[SegmentOutcome], seed: int) -> Iterable[SettingEffect]:
    """Yield each setting on the segments on which others were tried, the site's own first."""
    by_setting: dict[tuple[str, str], list[SegmentOutcome]] = {}
    for outcome in outcomes:
        by_setting.setdefault((outcome.variant, outcome.value), []).append(outcome)
    numbers = {outcome.number for outcome in outcomes if outcome.variant != AS_IS}
    if not numbers:
        return
    for (setting, value), of_setting in by_setting.items():
        compared = [outcome for outcome in of_setting if outcome.number in numbers]
        counted_h = _counted_h(compared)
        total = _together(chain.from_iterable(o.harvest.values() for o in compared))
        added_s: list[tuple[int, float]] = []  # by block
        for block in _blocks_of(compared):
            waits = _of_block(block, "")
            added_s.append((waits.jobs, waits.beside_s - waits.without_s))
        yield SettingEffect(
            setting=setting,
            value=value,
            hours=counted_h,
            held_node_hours=_per_day(total.held_s, counted_h),
            trained_node_hours=_per_day(total.trained_s, counted_h),
            jobs=sum(jobs for jobs, _ in added_s),
            added=change(added_s, seed),
        )
