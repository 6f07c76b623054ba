"""The simulated Slurm beside a real one: the same jobs, and in which cycle each starts.

For each backfill cycle of a real run without bftrainer, the simulation begins with what really ran
and waited when the cycle began, and is given what was really submitted and ended until the next: a
job's start cycle is the same if the simulation starts it between the two cycles between which it
really started, and in none before. (A simulation that runs on by itself tells little: one start
that differs changes all after it.) A job that waits for another one joins the queue when that has
ended. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median

from _bench.site.real import PreemptableRun, RealRun, RunKind
from _bench.targets import Target, at_least
from bftrainer.lab.site.machine import (
    JobSpec,
    Machine,
    Neighbour,
    Preemptable,
    SchedulerSettings,
    SiteJob,
)
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sharing import NodeSet, Share
from bftrainer.lab.site.timeline import positions

LEAST_SAME = 0.95
AFTER_S = 5.0  # the last real start: what is simulated until then counts
CYCLE_S = 0.01  # how long a cycle of a small cluster takes
AT_ONCE_S = 0.05  # from an end to the pass that it calls
# slurmctld's ticks are some milliseconds more than a second apart.
LEAST_DRIFT, MOST_DRIFT, TICK_ERROR_S = 0.0005, 0.02, 0.02
HALF_CYCLE_S = 5.0
LEAST_GAP_S, NEAR_S = 0.5, 10.0  # between two ticks; less: one tick made two passes


@dataclass(frozen=True, slots=True, kw_only=True)
class ApartStart:
    """A job that the simulation starts in another cycle, and what one needs to see why."""

    number: int
    n_nodes: int
    share: Share | None
    limit_s: float
    ready_s: float  # submitted, and waiting for no other job
    cycle_s: float  # begin of the cycle in which it really started, or which came before
    real_s: float
    real_nodes: tuple[int, ...]  # from 0
    by_backfill: bool  # really
    simulated_s: float | None  # in an earlier cycle; None: not when it really started
    simulated_nodes: tuple[int, ...]
    planned_s: float | None  # simulated backfill's plan, where it does not start the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Starts of one run, real and simulated."""

    name: str
    kind: RunKind
    n_jobs: int
    n_same: int
    n_same_nodes: int  # of these, on the same nodes
    by_backfill: int  # in the simulation
    apart: tuple[ApartStart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """From one real cycle to the next."""

    from_s: float
    to_s: float


def compare(real: RealRun) -> Beside:
    """Simulate each cycle of a real run, and hold the starts against the real ones."""
    nodes_of: dict[int, NodeSet] = {}  # jobs that start in the same cycle
    early: dict[int, SiteJob] = {}
    by_backfill = 0
    late: dict[int, tuple[float, SiteJob | None]] = {}
    for span in _spans(real):
        really = {n for n, at_s in real.starts_s.items() if span.from_s <= at_s < span.to_s}
        last_s = max([real.starts_s[n] for n in really], default=span.from_s) + AFTER_S
        machine = machine_at(real, span.from_s)
        machine.run(min(span.to_s, last_s))
        begun = {job.spec.number: job for job in machine.jobs if _starts_since(job, span.from_s)}
        nodes_of |= {n: begun[n].nodes for n in begun.keys() & really - early.keys()}
        early |= {n: begun[n] for n in begun.keys() - really - early.keys()}
        by_number = {job.spec.number: job for job in machine.jobs}
        late |= {n: (span.from_s, by_number.get(n)) for n in really}
        by_backfill += sum(job.by_backfill for n, job in begun.items() if n in really)
    apart = [spec for spec in real.jobs if spec.number not in nodes_of]
    return Beside(
        name=real.name,
        kind=real.kind,
        n_jobs=len(real.jobs),
        n_same=len(nodes_of),
        n_same_nodes=sum(nodes == real.nodes[n] for n, nodes in nodes_of.items()),
        by_backfill=by_backfill,
        apart=tuple(_apart(real, spec, early.get(spec.number), late) for spec in apart),
    )


def _spans(real: RealRun) -> Iterator[_Span]:
    begins_s = (0.0, *real.cycles_s)
    for from_s, to_s in zip(begins_s, (*real.cycles_s, math.inf), strict=True):
        yield _Span(from_s=from_s, to_s=to_s)


def _starts_since(job: SiteJob, from_s: float) -> bool:
    return job.start_s is not None and job.start_s >= from_s


def _apart(
    real: RealRun,
    spec: JobSpec,
    early: SiteJob | None,
    late: dict[int, tuple[float, SiteJob | None]],
) -> ApartStart:
    cycle_s, waiting = late[spec.number]
    return ApartStart(
        number=spec.number,
        n_nodes=spec.n_nodes,
        share=spec.share,
        limit_s=spec.limit_s,
        ready_s=real.ready_s(spec),
        cycle_s=cycle_s,
        real_s=real.starts_s[spec.number],
        real_nodes=tuple(positions(real.nodes[spec.number])),
        by_backfill=spec.number in real.by_backfill,
        simulated_s=None if early is None else early.start_s,
        simulated_nodes=() if early is None else tuple(positions(early.nodes)),
        planned_s=None if waiting is None else waiting.planned_s,
    )


def machine_at(real: RealRun, from_s: float) -> Machine:
    """Make a machine on which runs and waits what did when a cycle began."""
    ticks_s = ticks_of(real)
    last_s = max((at_s for at_s in ticks_s if at_s < from_s), default=0.0)
    drift_s = _drift(ticks_s) * (from_s - last_s + HALF_CYCLE_S)
    machine = Machine(
        SchedulerSettings(
            n_nodes=real.n_nodes,
            bf_duration_s=CYCLE_S,
            cycles_s=(from_s,),
            has_epilog=False,
            sched_min_interval_s=0.0,  # Slurm's default is two microseconds
            # Of these passes only the next: the machine then makes one at so many seconds.
            sched_interval_s=min((s for s in real.full_passes_s if s >= from_s), default=math.inf),
            tick_phase_s=(last_s + drift_s) % 1.0,
            capacities=real.capacities,
        )
    )
    machine.now_s = from_s
    machine.neighbour = _Ends(machine, real)
    main = MainScheduler(machine)
    main.resume(last_s)
    for spec in real.jobs:
        start_s = real.starts_s[spec.number]
        end_s = start_s + spec.run_s
        if start_s < from_s:
            if from_s < end_s:
                machine.take_over(spec, start_s, real.nodes[spec.number])
            elif last_s < end_s:
                main.wants_pass(is_end=False)
            continue
        ready_s = real.ready_s(spec)
        if ready_s < from_s:
            _join(machine, spec)
        if spec.kind == "sbatch" and last_s < spec.submit_s < from_s:
            main.wants_pass(is_end=False)
        if spec.submit_s < from_s <= ready_s:
            machine.at(ready_s, partial(_join, machine, spec))
    _load(real, machine, from_s)
    for mine in real.preemptable:
        if mine.end_s is None or mine.end_s > from_s:
            machine.at(mine.start_s, partial(_hold, machine, mine))
    Backfill(machine)
    return machine


def ticks_of(real: RealRun) -> list[float]:
    """Return the passes of slurmctld's background thread, which come with its ticks."""
    ends_s = [real.starts_s[spec.number] + spec.run_s for spec in real.jobs]
    ends_s += [mine.end_s for mine in real.preemptable if mine.end_s is not None]
    ends_s.sort()
    ticks_s: list[float] = []
    for at_s in real.passes_s:
        last_end = bisect_left(ends_s, at_s) - 1
        is_after_end = last_end >= 0 and at_s - ends_s[last_end] < AT_ONCE_S
        since_s = 1.0  # the first pass is taken for a tick
        if ticks_s:
            since_s = at_s - ticks_s[-1]
        is_tick = abs(since_s - max(1, round(since_s))) < TICK_ERROR_S + LEAST_DRIFT * since_s
        if is_tick or not is_after_end:
            ticks_s.append(at_s)
    return ticks_s


def _drift(ticks_s: Sequence[float]) -> float:
    """Return by how much a tick is late, of the time since the one before."""
    gaps_s = [to_s - from_s for from_s, to_s in pairwise(ticks_s)]
    usable_gaps_s = [gap_s for gap_s in gaps_s if LEAST_GAP_S < gap_s < NEAR_S]
    drifts = [(gap_s - round(gap_s)) / gap_s for gap_s in usable_gaps_s]
    return min(max(median(drifts or [0.0]), LEAST_DRIFT), MOST_DRIFT)


class _Ends(Neighbour):
    """Which passes the ends of jobs call.

    An end is as good as a submission where no epilog runs. Besides, slurmctld makes a pass at once
    if the last node tells of the end after the job's own message. That is a race, which is not
    simulated: whether it came so is taken from the real run.
    """

    def __init__(self, machine: Machine, real: RealRun) -> None:
        self._machine = machine
        self._passes_s = sorted(set(real.passes_s) - set(ticks_of(real)))

    def ended(self, _job: SiteJob) -> None:
        """Let the next pass come."""
        now_s = self._machine.now_s
        following = bisect_left(self._passes_s, now_s)
        if following < len(self._passes_s) and self._passes_s[following] - now_s < AT_ONCE_S:
            self._machine.scheduler.wants_pass(is_end=True)
        self._machine.scheduler.wants_pass(is_end=False)


def _load(real: RealRun, machine: Machine, from_s: float) -> None:
    """Let users submit what was submitted later; what waits for another job joins then."""
    later = [spec for spec in real.jobs if spec.submit_s >= from_s]
    machine.load(tuple(spec for spec in later if real.ready_s(spec) == spec.submit_s))
    for spec in later:
        if (ready_s := real.ready_s(spec)) > spec.submit_s:
            # Slurm makes a pass for each submission, but none when a dependency is fulfilled.
            machine.at(spec.submit_s, partial(machine.scheduler.wants_pass, is_end=False))
            machine.at(ready_s, partial(_join, machine, spec))


def _join(machine: Machine, spec: JobSpec) -> None:
    """Put a job into the queue without anybody's noticing."""
    machine.version += 1
    machine.wait(machine.add(spec))


def _hold(machine: Machine, real: PreemptableRun) -> None:
    """Let a preemptable job run where it really ran, if there is room."""
    mine = Preemptable(
        name=real.name, limit_s=real.limit_s, share=real.share, start_s=real.start_s, at=real.node
    )
    if machine.occupancy.place(mine, real.node):
        machine.preemptable[mine.name] = mine
        machine.occupancy.hold(mine)


def targets(compared: Sequence[Beside]) -> list[Target]:
    """Return how alike the two have to be, for each kind of run."""
    kinds = dict.fromkeys(comparison.kind for comparison in compared)
    return [_target(kind, compared) for kind in kinds]


def _target(kind: RunKind, compared: Sequence[Beside]) -> Target:
    runs = [comparison for comparison in compared if comparison.kind == kind]
    n_jobs = sum(comparison.n_jobs for comparison in runs)
    n_same = sum(comparison.n_same for comparison in runs)
    same_nodes = 100.0 * sum(comparison.n_same_nodes for comparison in runs) / max(1, n_same)
    by_backfill = sum(comparison.by_backfill for comparison in runs)
    return at_least(
        f"start cycle as on a real Slurm, {kind}",
        100.0 * n_same / max(1, n_jobs),
        100.0 * LEAST_SAME,
        "%",
        f"{n_jobs} jobs, {by_backfill} by backfill, {same_nodes:.0f}% on the same nodes",
    )
