"""Parts of a log, with the jobs that ran and waited at their begin, for the simulated site. Pure.

A segment begins with a warm-up without bftrainer, from the state of the log: jobs that ran then
start first, with what was left of them, and those that waited are in the queue. Then bftrainer is
beside the site: a lead-in, by whose end it holds what it can, and blocks that are counted.
Segments are spread evenly, each drawn within its stretch of the log.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bftrainer.lab.harm.replica import NodeType, PlayedJob, Replica
from bftrainer.lab.site.arms import BLOCK_CYCLES, BLOCK_S
from bftrainer.lab.site.machine import JobSpec, SchedulerSettings
from bftrainer.model.cluster import Node
from bftrainer.model.errors import ExitCode, UsageError
from bftrainer.model.parts import Lend

WARM_S = 2 * 3600.0  # at most
LEAST_WARM_S = 1800.0
BLOCKS = 9  # of a segment, at most
LEAST_BLOCKS = 2
LEAST_LEFT_S = 60.0  # of a job's limit that ran before the begin
FIRST = 1e18  # the priority of jobs that run already
AS_IS = ""  # the name of the settings that are the site's own
LEND = "lend"  # that of the key of the policy that is proposed where jobs share nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Settings to play with."""

    name: str = AS_IS  # of the setting that differs, as its file spells it
    value: str = ""
    slurm: SchedulerSettings
    policy_values: tuple[tuple[str, Any], ...] = ()
    lend: Lend = Lend.NODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of the log to play with some settings; seconds since its own begin."""

    variant: str
    value: str
    number: int
    slurm: SchedulerSettings = field(compare=False)
    policy_values: tuple[tuple[str, Any], ...] = field(compare=False)
    begun: tuple[JobSpec, ...] = field(compare=False)  # they ran at the begin
    jobs: tuple[JobSpec, ...] = field(compare=False)
    node_types: tuple[NodeType, ...] = field(compare=False)
    gpus: tuple[int, ...] = field(compare=False)  # of each node
    warm_s: float = field(compare=False)
    block_s: float = field(compare=False)
    n_blocks: int = field(compare=False)
    worker_start_s: float = field(compare=False)  # from an agent's hello to the first step
    seed: int = field(compare=False)
    lend: Lend = field(compare=False, default=Lend.NODES)
    lending: tuple[Node, ...] = field(compare=False, default=())  # as the nodes lend GPUs

    @property
    def begin_s(self) -> float:
        """The end of the lead-in: counted from then on."""
        return self.warm_s + self.block_s

    @property
    def end_s(self) -> float:
        """The end of the last block."""
        return self.begin_s + self.n_blocks * self.block_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """The begin of bftrainer beside the site, in seconds of the span, and the blocks counted."""

    from_s: float
    n_blocks: int


def block_s(slurm: SchedulerSettings) -> float:
    """Return the length of a block."""
    return max(BLOCK_S, BLOCK_CYCLES * (slurm.bf_interval_s + slurm.bf_duration_s))


def stretches(
    span_s: float, slurm: SchedulerSettings, hours: float, seed: int, most_blocks: int = BLOCKS
) -> tuple[LogPart, ...]:
    """Return the parts of a span that make about so many hours of blocks, so many each at most.

    Raises:
        UsageError: BFT-4146, the span is too short.
    """
    length_s = block_s(slurm)
    n_all = int((span_s - LEAST_WARM_S) / length_s) - 1  # without one for the lead-in
    if n_all < LEAST_BLOCKS:
        least_h = (LEAST_WARM_S + (LEAST_BLOCKS + 1) * length_s) / 3600.0
        raise UsageError(
            "BFT-4146",
            f"The log covers {span_s / 3600.0:.1f} h; {least_h:.1f} h are the least.",
            "Export a week of accounting, or name the time of the export with --start and --end.",
            exit_code=ExitCode.VALIDATION_FAILED,
        )
    n_blocks = max(LEAST_BLOCKS, min(most_blocks, n_all))
    each_s = (n_blocks + 1) * length_s
    room_s = span_s - LEAST_WARM_S
    n_parts = max(1, round(hours * 3600.0 / (n_blocks * length_s)))
    count = min(n_parts, max(1, int(room_s / each_s)))
    part_s = room_s / count
    chance = random.Random(seed)  # noqa: S311 - a choice of times, not a secret
    return tuple(
        LogPart(
            from_s=LEAST_WARM_S + number * part_s + chance.random() * (part_s - each_s),
            n_blocks=n_blocks,
        )
        for number in range(count)
    )


def segment(
    replica: Replica,
    variant: Variant,
    stretch: LogPart,
    number: int,
    *,
    worker_start_s: float,
    seed: int,
) -> Segment:
    """Return a segment; ``seed`` is of the phases of backfill."""
    warm_s = min(WARM_S, stretch.from_s)
    length_s = block_s(replica.slurm)
    end_s = stretch.from_s + (stretch.n_blocks + 1) * length_s
    begun, jobs = jobs_from(replica.jobs, stretch.from_s - warm_s, end_s)
    chance = random.Random(f"{seed} {number}")  # noqa: S311 - a phase, not a secret
    first_cycle_s = chance.random() * variant.slurm.bf_interval_s
    return Segment(
        variant=variant.name,
        value=variant.value,
        number=number,
        slurm=replace(variant.slurm, first_cycle_s=first_cycle_s),
        policy_values=variant.policy_values,
        begun=begun,
        jobs=jobs,
        node_types=replica.node_types,
        gpus=replica.gpus,
        warm_s=warm_s,
        block_s=length_s,
        n_blocks=stretch.n_blocks,
        worker_start_s=worker_start_s,
        seed=chance.randrange(1 << 30),
        lend=variant.lend,
        lending=replica.lending,
    )


Specs = tuple[JobSpec, ...]


def jobs_from(jobs: Sequence[PlayedJob], from_s: float, to_s: float) -> tuple[Specs, Specs]:
    """Return the jobs that run at the begin of a part of the span, and the others of that part.

    In its own seconds. Of those that run, what is left of them. Of an array those tasks are
    together that had not started; the first of them announces it.
    """
    first_of = dict[int, int]()
    begun, jobs_of_part = list[JobSpec](), list[JobSpec]()
    for job in jobs:
        spec = job.spec
        if job.end_s <= from_s or spec.submit_s >= to_s:
            continue
        if job.start_s < from_s:
            begun.append(_rest_of(job, from_s))
            continue
        array = first_of.setdefault(spec.array, spec.number) if spec.array else 0
        jobs_of_part.append(replace(spec, submit_s=spec.submit_s - from_s, array=array))
    return tuple(begun), tuple(jobs_of_part)


def _rest_of(job: PlayedJob, from_s: float) -> JobSpec:
    left_s = job.end_s - from_s
    limit_s = job.spec.limit_s - (from_s - job.start_s)
    return replace(
        job.spec,
        submit_s=0.0,
        run_s=left_s,
        limit_s=max(limit_s, left_s, LEAST_LEFT_S),
        priority=FIRST,
        array=0,
    )
