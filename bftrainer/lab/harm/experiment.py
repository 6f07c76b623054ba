"""One segment of a log, played on the simulated site without and beside bftrainer.

Each block begins with a copy of the state beside bftrainer, in which it is not. From that copy the
block is played without it, and once more without it, with the cycles of backfill in another phase:
what those two differ by is chance (the null pair).
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter, mul

from bftrainer.lab.harm.segments import Segment
from bftrainer.lab.harm.typed_core import TypedCore
from bftrainer.lab.site.arms import Span, alone, idle_spans
from bftrainer.lab.site.machine import Machine, Preemptable, SiteJob
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sharing import NodeSet
from bftrainer.lab.site.sidecar import Core, Sidecar
from bftrainer.lab.site.timeline import positions

HELLO_S = 3.0  # from a pilot's start to its agent's hello
TAKE_OVER_S = 120.0  # in which the jobs start that ran at the begin; then the queue comes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWaits:
    """The waits of a partition's jobs in one block, in job-seconds."""

    jobs: int  # submitted in it
    without_s: float
    beside_s: float
    again_s: float  # without bftrainer, in another phase of backfill


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeHarvest:
    """The node time of one type of nodes, in node-seconds and GPU-seconds.

    Some GPUs of a node, of all that it has, count as much of the node.
    """

    held_s: float
    trained_s: float
    idle_s: float
    held_gpu_s: float
    trained_gpu_s: float
    leftover_gpu_s: float  # of GPUs that no job uses, on nodes with jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentOutcome:
    """The result of a segment."""

    variant: str
    value: str
    number: int
    counted_s: float  # of the site's time
    blocks: tuple[Mapping[str, BlockWaits], ...]  # by partition
    harvest: Mapping[str, TypeHarvest]  # by type of node
    pilots: int  # requested
    preempted: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class _Held:
    """A pilot's time on its node."""

    node: int
    gpus: int  # of the node; 0: all of it is held
    from_s: float
    to_s: float


class NotedSidecar(Sidecar):
    """A sidecar that notes which node each pilot held, and for how long."""

    def __init__(self, machine: Machine, *, hello_s: float, core: Core) -> None:
        super().__init__(machine, hello_s=hello_s, core=core)
        self._clock = machine
        self.held = list[_Held]()

    def gone(self, mine: Preemptable) -> None:
        """Note the pilot that has left."""
        if mine.start_s is not None:
            self.held.append(_held(mine, self._clock.now_s))
        super().gone(mine)

    def held_until_now(self) -> list[_Held]:
        """Return what was held, pilots that are still there included."""
        now_s = self._clock.now_s
        present = [p for p in self._clock.preemptable.values() if p.start_s is not None]
        return [*self.held, *(_held(mine, now_s) for mine in present)]


def _held(mine: Preemptable, until_s: float) -> _Held:
    start_s = until_s if mine.start_s is None else mine.start_s
    gpus = 0
    if mine.share is not None:
        gpus = mine.share.gpus
    return _Held(node=mine.at.bit_length() - 1, gpus=gpus, from_s=start_s, to_s=until_s)


def play_segment(segment: Segment) -> SegmentOutcome:
    """Play a segment."""
    began_s = time.process_time()
    machine = Machine(segment.slurm)
    core = TypedCore(
        machine,
        segment.node_types,
        start_s=segment.worker_start_s,
        policy_values=dict(segment.policy_values),
        lend=segment.lend,
        lending=segment.lending,
    )
    sidecar = NotedSidecar(machine, hello_s=HELLO_S, core=core)
    MainScheduler(machine)
    backfill = Backfill(machine, sidecar.know)
    sidecar.last_cycle = lambda: backfill.last
    machine.load(segment.begun)
    machine.run(TAKE_OVER_S)
    machine.load(segment.jobs)
    machine.at(segment.warm_s, sidecar.begin)
    machine.run(segment.begin_s)
    sidecar.count_from_now()
    n_preempted = machine.n_preempted
    blocks = tuple(_blocks(segment, machine, backfill))
    return SegmentOutcome(
        variant=segment.variant,
        value=segment.value,
        number=segment.number,
        counted_s=segment.end_s - segment.begin_s,
        blocks=blocks,
        harvest=_harvest(segment, machine, sidecar),
        pilots=len(sidecar.requested),
        preempted=machine.n_preempted - n_preempted,
        cpu_s=time.process_time() - began_s,
    )


def _blocks(
    segment: Segment, machine: Machine, backfill: Backfill
) -> Iterator[Mapping[str, BlockWaits]]:
    chance = random.Random(segment.seed)  # noqa: S311 - a phase, not a secret
    for number in range(segment.n_blocks):
        from_s = segment.begin_s + number * segment.block_s
        to_s = from_s + segment.block_s
        machine.run(from_s)
        without, again = alone(machine, backfill), alone(machine, backfill)
        shift_backfill(again, chance.random())
        without.run(to_s)
        again.run(to_s)
        machine.run(to_s)
        without_s = waits_of(without.jobs, from_s, to_s)
        beside_s = waits_of(machine.jobs, from_s, to_s)
        again_s = waits_of(again.jobs, from_s, to_s)
        jobs = Counter(
            job.spec.partition for job in machine.jobs if from_s <= job.spec.submit_s < to_s
        )
        waits = {}
        for name in sorted({*jobs, *without_s, *beside_s, *again_s}):
            waits[name] = BlockWaits(
                jobs=jobs[name],
                without_s=without_s[name],
                beside_s=beside_s[name],
                again_s=again_s[name],
            )
        yield waits


def waits_of(jobs: Sequence[SiteJob], from_s: float, to_s: float) -> defaultdict[str, float]:
    """Return how long the jobs of each partition waited in a span, in job-seconds."""
    total = defaultdict[str, float](float)
    for job in jobs:
        if job.spec.submit_s < to_s and job.is_eligible and not job.is_refused:
            start_s = to_s
            if job.start_s is not None:
                start_s = min(job.start_s, to_s)
            total[job.spec.partition] += max(0.0, start_s - max(job.spec.submit_s, from_s))
    return total


def shift_backfill(machine: Machine, share: float) -> None:
    """Let the next cycle of backfill begin in another phase, after ``share`` of a period more.

    A cycle that would begin later than a period from now begins that much earlier, so that the
    next cycle is as soon in the mean as it was. A cycle that goes on is shifted as a whole.
    """
    settings = machine.settings
    period_s = settings.bf_interval_s + settings.bf_duration_s
    steps, other_events = [], []
    for event in machine.events:
        _, _, action = event
        if is_of_backfill(action):
            steps.append(event)
        else:
            other_events.append(event)
    if not steps:
        return
    later_s = share * period_s
    next_s, _, _ = min(steps, key=itemgetter(0))
    if next_s + later_s > machine.now_s + period_s:
        later_s = max(later_s - period_s, machine.now_s - next_s)
    shifted = [(at_s + later_s, turn, action) for at_s, turn, action in steps]
    machine.events = other_events + shifted
    heapq.heapify(machine.events)


def is_of_backfill(action: object) -> bool:
    """Return whether an event of a machine is a step of its backfill."""
    if isinstance(action, partial):
        action = action.func
    return isinstance(getattr(action, "__self__", None), Backfill)


def _harvest(
    segment: Segment, machine: Machine, sidecar: NotedSidecar
) -> Mapping[str, TypeHarvest]:
    window = (segment.begin_s, segment.end_s)
    n_nodes = segment.slurm.n_nodes
    held_s, trained_s = [0.0] * n_nodes, [0.0] * n_nodes
    late_s = HELLO_S + segment.worker_start_s
    for pilot in sidecar.held_until_now():
        share = 1.0
        if pilot.gpus:
            share = pilot.gpus / segment.gpus[pilot.node]
        held_s[pilot.node] += share * _within(pilot.from_s, pilot.to_s, window)
        trained_s[pilot.node] += share * _within(pilot.from_s + late_s, pilot.to_s, window)
    spans = idle_spans(machine.jobs, n_nodes, window)
    idle_s = list(map(_length_s, spans))
    leftover_s = leftover_gpu_s(machine.jobs, segment.gpus, idle_s, window)
    harvest = {}
    for kind in segment.node_types:
        add_up = partial(_sum_over, kind.nodes)
        harvest[kind.name] = TypeHarvest(
            held_s=add_up(held_s),
            trained_s=add_up(trained_s),
            idle_s=add_up(idle_s),
            held_gpu_s=add_up(list(map(mul, held_s, segment.gpus))),
            trained_gpu_s=add_up(list(map(mul, trained_s, segment.gpus))),
            leftover_gpu_s=add_up(leftover_s),
        )
    return harvest


def _length_s(spans: Iterable[Span]) -> float:
    return sum(to_s - from_s for from_s, to_s in spans)


def _sum_over(nodes: NodeSet, values: Sequence[float]) -> float:
    return sum(values[node] for node in positions(nodes))


def leftover_gpu_s(
    jobs: Sequence[SiteJob], gpus: Sequence[int], idle_s: Sequence[float], window: Span
) -> list[float]:
    """Return the time of GPUs that no job uses on nodes with a job, by node.

    Args:
        jobs: of the machine.
        gpus: of each node.
        idle_s: time of each node without a job.
        window: the span that is counted.
    """
    begin_s, until_s = window
    length_s = until_s - begin_s
    unused_s = [count * (length_s - free_s) for count, free_s in zip(gpus, idle_s, strict=True)]
    for job in jobs:
        if job.start_s is None:
            continue
        end_s = until_s
        if job.end_s is not None:
            end_s = job.end_s
        used_s = _within(job.start_s, end_s, window)
        for node in positions(job.nodes):
            n_used = gpus[node]
            if job.spec.share is not None:
                n_used = job.spec.share.gpus
            unused_s[node] -= n_used * used_s
    return [max(0.0, seconds) for seconds in unused_s]


def _within(from_s: float, to_s: float, window: Span) -> float:
    begin_s, until_s = window
    return max(0.0, min(to_s, until_s) - max(from_s, begin_s))
