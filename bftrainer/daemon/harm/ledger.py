"""Records how long ordinary jobs waited for nodes of ours, with the promise over them. Pure.

Where a pilot had a part of a node, "node" is that part, here and in the records; which job on its
host got it, ``hosts`` tells. All figures count nodes and parts alike, one for each pilot.

The *harm* of a hand-over is the time from when the job could have started but for our pilot until
it could start. It begins with our release, made when the job could start, or with the signal of
the batch system, which preempts for jobs that could. It ends when the node is free; but for a job
that lost a cycle of the scheduler by having to preempt (``lost_cycle``), with its start. A pilot
may have been preempted for a job that then starts on another node, which we gave back too late, or
for which we had released one: that is a hand-over to this job, too, with its lost cycle.

The batch system's times are whole seconds and polls are seconds apart; the agent knows its own
exit exactly. So the time lies between two bounds:

* lower: the agent's exit, or the last poll that still showed the pilot's job;
* upper: the first poll that did not, or the second after the job's start.

With an exit reported by the agent the lower bound is used (what follows is the batch system's
epilog, and polls show a slow one), otherwise the upper, because an agent that did not report was
probably slow. ``precision_s`` is the distance between the bounds.

A pilot's *end* is open from its first sign (our release, the agent's last message, its absence
from the queue) until it is settled: an ordinary job is on the node, or none came. ``fold``
processes a decision with its input, ``farewell`` an agent's last message; both return the next
ledger. Called only by ``bftrainer.daemon.harm.book``.

Only pilots that have started count: a pending one withholds no node.

The default promise: 0.95 of the nodes are free within 1 s. An agent exits 0.05 s after it was told,
Slurm starts batch jobs at ticks of one to three seconds, and its times are whole seconds, so
shorter delays go unnoticed; one node in twenty may be slow for reasons of its own.
"""

from __future__ import annotations

import enum
import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from bftrainer.batch.announcer import UNSEEN_S, is_alike, is_same_job
from bftrainer.daemon.harm import hosts, lost_cycle
from bftrainer.daemon.harm.aftermath import Departure, Unusable
from bftrainer.daemon.harm.ends import End, lent_part, limit_struck
from bftrainer.daemon.harm.hosts import HostLook, Hosts
from bftrainer.daemon.harm.lost_cycle import WHOLE_S, Preemption
from bftrainer.daemon.harm.pending import StaysPending
from bftrainer.model.cluster import EndedBy, Job, JobState, node_of
from bftrainer.model.decision import DecisionInput, PilotView, Plan, Slept
from bftrainer.model.lookups import by_job, by_pilot
from bftrainer.model.parts import NodePart
from bftrainer.model.reports import DelayBucket, LostCycle

KIND: Final = "harm"  # of the journal's entries
BUCKETS_S: Final = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)  # upper bounds
# Backfill preempts in one cycle and starts the job in the next.
CYCLES_UNTIL_TAKEN: Final = 2.0
_AWAKE: Final = Slept()


class How(enum.StrEnum):
    """The way in which the node was freed."""

    GIVEN_BACK = "given-back"  # we did, before the batch system had to
    PREEMPTED = "preempted"  # the batch system ended our pilot


class Why(enum.StrEnum):
    """The reason for which a release of a node was in vain."""

    STARTED_ELSEWHERE = "started-elsewhere"
    DID_NOT_START = "did-not-start"  # and the node is no longer held off
    LEFT_THE_QUEUE = "left-the-queue"  # cancelled, or too short for a poll to show it


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOver:
    """A node that an ordinary job got from us."""

    job_id: str
    n_nodes: int  # of the job
    node: str
    pilot_id: str
    how: How
    asked_s: float | None  # our release or the agent's SIGTERM; None: unknown
    freed_s: float
    precision_s: float  # possible error of freed_s
    start_s: float | None = None  # of the job, whole seconds on Slurm
    asked_for: str = ""  # the job the node was released for, if any
    # Parts of the delay; None: the agent did not report.
    decision_s: float = 0.0
    cancel_s: float | None = None  # until the agent was told
    agent_s: float | None = None  # until the agent had exited
    epilog_s: float | None = None  # until the batch system had the node
    # What the job lost to a cycle of the scheduler, 0: nothing; None: as this node's times tell.
    lost_s: float | None = None
    slept_s: float = 0.0  # of the delay: the daemon did not run
    gpus: int = 0  # of the part of a node that the pilot had; 0: it had the whole node
    gpu_type: str = ""  # their type, "gpu:a100"; "": it had the whole node
    ADDED: ClassVar = frozenset({"lost_s", "slept_s", "gpus", "gpu_type"})

    @property
    def cycle_lost_s(self) -> float:
        """The time that the job lost to a cycle of the scheduler; 0: none."""
        if self.lost_s is not None:
            return self.lost_s
        if self.how is not How.PREEMPTED or self.asked_s is None or self.start_s is None:
            return 0.0
        return lost_cycle.lost_s(
            Preemption(
                at_s=self.asked_s,
                ran_s=None,
                free_s=self.freed_s,
                start_s=self.start_s,
                cycle_s=math.inf,
            )
        )

    @property
    def delay_s(self) -> float | None:
        """The time the job waited for us: the figure of the SLO; None: unknown."""
        until_free_s = None
        if self.asked_s is not None:
            until_free_s = max(0.0, self.freed_s - self.asked_s)
        if self.cycle_lost_s:
            return max(until_free_s or 0.0, self.cycle_lost_s)
        return until_free_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Vain:
    """A node released for a job that did not take it, nor did another."""

    job_id: str
    node: str
    pilot_id: str
    asked_s: float
    settled_s: float
    why: Why
    family: str = ""  # of the job
    gpus: int = 0  # as of a ``HandOver``
    gpu_type: str = ""
    ADDED: ClassVar = frozenset({"gpus", "gpu_type"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A pilot that others ended, and on whose node no ordinary job was seen that it was for."""

    node: str
    pilot_id: str
    ended_s: float
    settled_s: float
    by: EndedBy = EndedBy.UNKNOWN
    gpus: int = 0  # as of a ``HandOver``
    gpu_type: str = ""
    ADDED: ClassVar = frozenset({"gpus", "gpu_type"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmRecords:
    """Results of one snapshot: the payload of one journal entry."""

    hand_overs: tuple[HandOver, ...] = ()
    vain: tuple[Vain, ...] = ()
    taken: tuple[Taken, ...] = ()
    left: tuple[Departure, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    ordinary_left: int = 0  # nodes that ordinary jobs left since the entry before
    pending: tuple[StaysPending, ...] = ()  # of pilots for parts alone
    ADDED: ClassVar = frozenset({"left", "unusable", "ordinary_left", "pending"})

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is to be journalled."""
        return self == HarmRecords()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The promise, and when breaking it is forgotten."""

    limit_s: float = 1.0
    share: float = 0.95
    quiet_s: float = 1800.0


def delays_s(hand_overs: Iterable[HandOver]) -> list[float]:
    """Return the measured delays, in order."""
    return [h.delay_s for h in hand_overs if h.delay_s is not None]


def histogram(delays: Iterable[float]) -> tuple[DelayBucket, ...]:
    """Count delays in fixed buckets."""
    counts = [0] * (len(BUCKETS_S) + 1)
    for delay in delays:
        counts[bisect_left(BUCKETS_S, delay)] += 1
    return tuple(
        DelayBucket(at_most_s=bound, count=count)
        for bound, count in zip((*BUCKETS_S, None), counts, strict=True)
    )


def share_within(delays: Sequence[float], limit_s: float) -> float | None:
    """Return the share of delays within the limit; None if there are none."""
    if not delays:
        return None
    return sum(delay_s <= limit_s for delay_s in delays) / len(delays)


def quantile(delays: Sequence[float], q: float) -> float | None:
    """Return the smallest delay that a share ``q`` of the delays does not exceed."""
    if not delays:
        return None
    ascending = sorted(delays)
    return ascending[max(0, math.ceil(q * len(ascending)) - 1)]


def worst(hand_overs: Iterable[HandOver], count: int) -> tuple[HandOver, ...]:
    """Return the slowest, slowest first; unmeasured ones last."""
    return tuple(sorted(hand_overs, key=_slowness_s, reverse=True)[:count])


def _slowness_s(hand_over: HandOver) -> float:
    if hand_over.delay_s is None:
        return -1.0
    return hand_over.delay_s


def lost_cycles(hand_overs: Iterable[HandOver]) -> tuple[LostCycle, ...]:
    """Return the jobs that lost a cycle of the scheduler, the longest first."""
    cycles: dict[str, LostCycle] = {}
    for hand_over in hand_overs:
        if hand_over.cycle_lost_s:
            job_id, lost_s = hand_over.job_id, hand_over.cycle_lost_s
            nodes: tuple[str, ...] = ()
            if job_id in cycles:
                lost_s = max(lost_s, cycles[job_id].lost_s)
                nodes = cycles[job_id].nodes
            nodes = (*nodes, hand_over.node)
            cycles[job_id] = LostCycle(job_id=job_id, lost_s=lost_s, nodes=nodes)
    return tuple(sorted(cycles.values(), key=lambda cycle: cycle.lost_s, reverse=True))


def what_it_got(done: HandOver) -> str:
    """Return the node, or its GPUs: "n1", "2 gpu:a100 of n1"."""
    if not done.gpus:
        return done.node
    return f"{done.gpus} {done.gpu_type} of {node_of(done.node)}"


def slow_part(done: HandOver) -> str:
    """Say in one sentence which part took most of the time."""
    if done.delay_s is not None and 2.0 * done.slept_s > done.delay_s:
        return f"The daemon did not run for {done.slept_s:.2f} s of these (BFT-1318)."
    if done.cycle_lost_s:
        return (
            "The batch system preempted for the job in one cycle and started it in a later one, "
            f"{done.cycle_lost_s:.0f} s after."
        )
    if done.delay_s is None:
        return "The batch system ended the pilot and its agent did not report."
    if done.cancel_s is None or done.agent_s is None or done.epilog_s is None:
        return f"The agent did not report: the node was free within {done.delay_s:.2f} s."
    order = "our order"
    if done.how is How.PREEMPTED:
        order = "the batch system's signal"
    parts = {
        f"our decision took {done.decision_s:.2f} s": done.decision_s,
        f"the agent received {order} after {done.cancel_s:.2f} s": done.cancel_s,
        f"the agent took {done.agent_s:.2f} s to leave": done.agent_s,
        f"the batch system's epilog took {done.epilog_s:.2f} s": done.epilog_s,
    }
    slowest = max(parts, key=parts.__getitem__)
    return f"{slowest[:1].upper()}{slowest[1:]}."


def hand_over(end: End, taker: Job, now_s: float, slept: Slept = _AWAKE) -> HandOver:
    """Measure a hand-over to the job that is now on the node."""
    asked_s = end.began_s
    freed_s, precision_s = _freed(end, taker, now_s)
    how, decision_s = How.GIVEN_BACK, end.decision_s
    if end.is_preempted:
        how, decision_s = How.PREEMPTED, 0.0
    cancel_s = agent_s = epilog_s = None
    if asked_s is not None and end.told_s is not None and end.left_s is not None:
        cancel_s = max(0.0, end.told_s - asked_s - decision_s)
        agent_s = max(0.0, end.left_s - max(end.told_s, asked_s))
        epilog_s = max(0.0, freed_s - end.left_s)
    slept_s = 0.0
    if asked_s is not None:
        slept_s = _common_s(slept, asked_s, freed_s)
    return HandOver(
        job_id=taker.job_id,
        n_nodes=taker.n_nodes,
        node=end.node,
        pilot_id=end.pilot_id,
        how=how,
        asked_s=asked_s,
        freed_s=freed_s,
        precision_s=precision_s,
        start_s=taker.start_s,
        asked_for=end.job_id,
        decision_s=decision_s,
        cancel_s=cancel_s,
        agent_s=agent_s,
        epilog_s=epilog_s,
        slept_s=slept_s,
        gpus=end.gpus,
        gpu_type=end.gpu_type,
    )


def _common_s(slept: Slept, from_s: float, until_s: float) -> float:
    return max(0.0, min(until_s, slept.until_s) - max(from_s, slept.from_s))


def _freed(end: End, taker: Job, now_s: float) -> tuple[float, float]:
    """Return when the node was free, and the distance between the two bounds of that."""
    to_s = now_s
    if end.gone_s is not None:
        to_s = end.gone_s
    if taker.start_s is not None:
        to_s = min(to_s, taker.start_s + WHOLE_S)
    lower_bounds_s = [
        bound_s for bound_s in (end.began_s, end.left_s, end.seen_s) if bound_s is not None
    ]
    from_s = max(lower_bounds_s, default=to_s)
    precision_s = max(0.0, to_s - from_s)
    if end.left_s is not None:
        return from_s, precision_s
    return from_s + precision_s, precision_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Farewell:
    """An agent's last message, in the daemon's time."""

    pilot_id: str
    node: str
    reason: str  # "signal", "told", "lease", "time-limit", "refused"
    told_s: float  # when it was told to leave
    left_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """State of the fold."""

    held: Mapping[str, PilotView] = field(default_factory=dict)  # started, at the last decision
    ends: Mapping[str, End] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()  # pilots still listed whose end is settled
    # How ends that we did not ask for came about, by what the batch system says.
    ended_by: Mapping[str, EndedBy] = field(default_factory=dict)
    ran_s: Mapping[str, float] = field(default_factory=dict)  # begin of the last look that ran it
    hosts: Hosts = field(default_factory=Hosts)  # with parts of ours


class _Ordinary:
    """The ordinary jobs of a snapshot, indexed: hundreds, looked up as often."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._by_id: dict[str, Job] = {}
        self._by_user: dict[str, list[Job]] = {}
        for job in jobs:
            if job.is_ordinary:
                self._by_id[job.job_id] = job
                self._by_user.setdefault(job.user, []).append(job)

    def same_as(self, job: Job) -> list[Job]:
        """Return the job itself; for an announced one, all jobs that it may be."""
        if job.is_announced:
            jobs = self._by_user.get(job.user, ())
            return [candidate for candidate in jobs if is_same_job(job, candidate)]
        if job.job_id not in self._by_id:
            return []
        return [self._by_id[job.job_id]]

    def recognised(self, end: End) -> End:
        """Return an end with the job that it is for as the queue shows it, if only one can be it.

        A user may have submitted others within the same seconds: theirs is another story.
        """
        if end.job is None or not end.job.is_announced:
            return end
        announced_job, candidates = end.job, list[Job]()
        for job in self.same_as(announced_job):
            has_same_gpus = job.gpus_per_node == announced_job.gpus_per_node
            if is_alike(announced_job, job) and has_same_gpus and not job.is_announced:
                candidates.append(job)
        if len(candidates) != 1:
            return end
        return replace(end, job=candidates[0])


class _Verdict(enum.Enum):
    OPEN = enum.auto()
    DROPPED = enum.auto()
    TAKEN = enum.auto()


def farewell(ledger: Ledger, said: Farewell) -> Ledger:
    """Process an agent's last message."""
    end = ledger.ends.get(said.pilot_id)
    if end is None:
        view = ledger.held.get(said.pilot_id)
        if said.reason != "signal" or (view is not None and limit_struck(view, said.told_s)):
            return replace(ledger, settled=ledger.settled | {said.pilot_id})
        end = End(pilot_id=said.pilot_id, node=said.node)
        if view is not None:
            end = replace(end, part=lent_part(view))
    # A signal before our release came from the batch system; one after it from our cancel.
    is_theirs = said.reason == "signal" and (end.asked_s is None or said.told_s < end.asked_s)
    heard = replace(end, told_s=said.told_s, left_s=said.left_s, is_preempted=is_theirs)
    return replace(ledger, ends={**ledger.ends, said.pilot_id: heard})


def explained(ledger: Ledger, pilot_id: str, by: EndedBy) -> Ledger:
    """Process what the batch system says of an end; before the snapshot that shows it.

    It may have preempted a pilot that we had just asked to leave. What else it says of such a
    pilot's end is no news.
    """
    end = ledger.ends.get(pilot_id)
    if end is not None and end.asked_s is not None:
        if by is not EndedBy.PREEMPTED:
            return ledger
        ledger = replace(ledger, ends={**ledger.ends, pilot_id: replace(end, is_preempted=True)})
    return replace(ledger, ended_by={**ledger.ended_by, pilot_id: by})


def fold(
    ledger: Ledger, given: DecisionInput, plan: Plan, took_s: float
) -> tuple[Ledger, HarmRecords]:
    """Process one decision: what its snapshot shows, and what it releases.

    Args:
        ledger: state so far.
        given: the decision's input, without pilots that its snapshot shows as ended.
        plan: the decision.
        took_s: duration of the decision.
    """
    views = by_pilot(given.pilots)
    ending = ledger.ends.keys() | ledger.settled
    ends = dict(ledger.ends)
    for pilot_id in ledger.held.keys() - views.keys() - ending:  # ended without a message
        view = ledger.held[pilot_id]
        if not limit_struck(view, given.now_s):
            ends[pilot_id] = End(
                pilot_id=pilot_id,
                node=view.node,
                part=lent_part(view),
                gone_s=given.now_s,
                is_preempted=True,
                ran_s=ledger.ran_s.get(pilot_id),
            )
    records = HarmRecords()
    hosts_after = ledger.hosts
    if given.is_new_snapshot and given.snapshot.jobs is not None:
        hosts_after, open_ends, records = _look(ends, given, ledger, plan.memory.held_off.keys())
        ending |= ends.keys() - open_ends.keys()
        ends = open_ends
    started = _started(views.values())
    if plan.releases:
        jobs = by_job(given.snapshot.jobs or ())
        for release in plan.releases:
            pilot_id = release.pilot_id
            if pilot_id in started and pilot_id not in ending and pilot_id not in ends:
                ends[pilot_id] = End(
                    pilot_id=pilot_id,
                    node=release.node,
                    part=lent_part(started[pilot_id]),
                    asked_s=given.now_s,
                    decision_s=took_s,
                    job=jobs.get(release.for_job),
                )
    listed = ends.keys() | views.keys()
    ended_by = {
        pilot_id: cause for pilot_id, cause in ledger.ended_by.items() if pilot_id in listed
    }
    after = Ledger(
        held=started,
        ends=ends,
        settled=frozenset((ending - ends.keys()) & views.keys()),
        ended_by=ended_by,
        ran_s=_ran_s(started, ledger.ran_s, given.snapshot.taken_at_s),
        hosts=hosts_after,
    )
    return after, records


def _started(views: Iterable[PilotView]) -> dict[str, PilotView]:
    started: dict[str, PilotView] = {}
    for view in views:
        if view.is_held or view.end_s is not None:
            started[view.pilot_id] = view
    return started


def _ran_s(
    started: Mapping[str, PilotView], before_s: Mapping[str, float], looked_s: float
) -> dict[str, float]:
    """Return the begin of the last look that showed each pilot running."""
    ran_s: dict[str, float] = {}
    for pilot_id, view in started.items():
        ran_s[pilot_id] = looked_s
        if view.is_leaving:
            ran_s[pilot_id] = before_s.get(pilot_id, looked_s)
    return ran_s


def _look(
    ends: Mapping[str, End], given: DecisionInput, ledger: Ledger, held_off: AbstractSet[str]
) -> tuple[Hosts, dict[str, End], HarmRecords]:
    """Settle the ends that the snapshot settles."""
    jobs = given.snapshot.jobs or ()
    ordinary = _Ordinary(jobs)
    pilot_ids = {job.pilot_id for job in jobs}
    latest_ends = [
        _observed(ordinary.recognised(before), given, is_present=before.pilot_id in pilot_ids)
        for before in ends.values()
    ]
    of_others: list[Taken] = []
    for_jobs: list[End] = []
    for end in latest_ends:
        cause = ledger.ended_by.get(end.pilot_id, EndedBy.UNKNOWN)
        if cause not in (EndedBy.PREEMPTED, EndedBy.UNKNOWN) and end.gone_s is not None:
            of_others.append(_taken(end, cause, given.now_s))  # for no job, whoever comes next
        else:
            for_jobs.append(end)
    hosts_after, taker_of = _takers(for_jobs, given, ledger.hosts)
    takers = [(end, taker_of[end.pilot_id]) for end in for_jobs if end.pilot_id in taker_of]
    served = _served(latest_ends, takers, ordinary)
    open_ends: dict[str, End] = {}
    vain: list[Vain] = []
    for end in for_jobs:
        if end.pilot_id in taker_of:
            continue
        if loser := _loser(end, served, ledger.hosts):
            takers.append((end, loser))
            continue
        is_held_off = bool({end.node, node_of(end.node)} & held_off)
        verdict = _verdict(end, ordinary, given, is_held_off=is_held_off)
        if verdict is _Verdict.OPEN:
            open_ends[end.pilot_id] = end
        elif verdict is _Verdict.TAKEN:
            cause = ledger.ended_by.get(end.pilot_id, EndedBy.UNKNOWN)
            of_others.append(_taken(end, cause, given.now_s))
        elif isinstance(verdict, Why):
            vain.append(_vain(end, verdict, given.now_s))
    records = HarmRecords(
        hand_overs=_hand_overs(takers, given), vain=tuple(vain), taken=tuple(of_others)
    )
    return hosts_after, open_ends, records


def _takers(
    ends: Iterable[End], given: DecisionInput, before: Hosts
) -> tuple[Hosts, dict[str, Job]]:
    """Return which job got what each pilot left, by pilot."""
    parts: dict[str, NodePart] = {}
    for view in given.pilots:
        part = lent_part(view)
        if part is not None:
            parts[view.pilot_id] = part
    of_parts: list[End] = []
    of_nodes: list[End] = []
    for end in ends:
        if end.part is None:
            of_nodes.append(end)
        else:
            of_parts.append(end)
    host_look = HostLook(snapshot=given.snapshot, parts=parts, ends=of_parts)
    after, pairs = hosts.look(before, host_look)
    takers = {end.pilot_id: job for end, job in pairs}
    on_node = _by_node(given.snapshot.jobs or (), {end.node for end in of_nodes})
    for end in of_nodes:
        if taker := _taker(end, on_node.get(end.node, ())):
            takers[end.pilot_id] = taker
    return after, takers


def _served(
    ends: Iterable[End], takers: Iterable[tuple[End, Job]], ordinary: _Ordinary
) -> list[Job]:
    """Return the running jobs for which nodes were released, or that took released ones."""
    jobs = {job.job_id: job for end, job in takers if end.asked_s is not None}
    for end in ends:
        if end.job is not None:
            for job in ordinary.same_as(end.job):
                if job.state is not JobState.PENDING:
                    jobs[job.job_id] = job
    return sorted(jobs.values(), key=lambda job: (-job.priority, job.job_id))


def _loser(end: End, served: Iterable[Job], before: Hosts) -> Job | None:
    """Return the job for which a pilot was preempted, if it started elsewhere and too late.

    It waited at that moment, and a node of ours was released for it: too late.
    """
    preempted_s = end.began_s
    if preempted_s is None:
        preempted_s = end.gone_s
    if not end.is_preempted or end.gone_s is None or preempted_s is None:
        return None
    least_s = preempted_s + lost_cycle.TICK_S
    for job in served:
        if end.part is not None and not hosts.has_use_for(job, end.part, before):
            continue
        if (job.submit_s or 0.0) <= preempted_s and (job.start_s or 0.0) > least_s:
            return job
    return None


def _hand_overs(takers: Iterable[tuple[End, Job]], given: DecisionInput) -> tuple[HandOver, ...]:
    """Measure hand-overs, with the cycle that each job has lost."""
    by_job = dict[str, list[tuple[End, Job]]]()
    for end, job in takers:
        by_job.setdefault(job.job_id, []).append((end, job))
    hand_overs: list[HandOver] = []
    for pairs in by_job.values():
        of_job = [hand_over(end, job, given.now_s, given.slept) for end, job in pairs]
        # Without a signal, "free" is not known either, and no later than the job's start.
        free_s = [node.freed_s for node in of_job if node.asked_s is not None]
        lost_s = _lost_s(pairs, max(free_s or [node.freed_s for node in of_job]), given)
        for node in of_job:
            if node.how is not How.GIVEN_BACK and node.cycle_lost_s != lost_s:
                node = replace(node, lost_s=lost_s)  # noqa: PLW2901 - the same, with its loss
            hand_overs.append(node)
    return tuple(hand_overs)


def _lost_s(pairs: Iterable[tuple[End, Job]], free_s: float, given: DecisionInput) -> float:
    signals_s: list[float] = []
    looks_s: list[float] = []
    preemptor: Job | None = None
    for end, job in pairs:
        if end.is_preempted:
            preemptor = preemptor or job
            if end.began_s is not None:
                signals_s.append(end.began_s)
            if end.ran_s is not None:
                looks_s.append(end.ran_s)
    if preemptor is None:
        return 0.0
    return lost_cycle.lost_s(
        Preemption(
            at_s=min(signals_s, default=None),
            ran_s=min(looks_s, default=None),
            free_s=free_s,
            start_s=preemptor.start_s,
            cycle_s=given.settings.cycle_s,
            is_behind=lost_cycle.is_behind(preemptor, given.snapshot.jobs or ()),
        )
    )


def _by_node(jobs: Iterable[Job], nodes: set[str]) -> dict[str, list[Job]]:
    """Return the ordinary jobs on each node."""
    on_node: dict[str, list[Job]] = {}
    if not nodes:
        return on_node
    for job in jobs:
        if job.is_ordinary and job.state is not JobState.PENDING:
            for node in nodes.intersection(job.nodes):
                on_node.setdefault(node, []).append(job)
    return on_node


def _observed(end: End, given: DecisionInput, *, is_present: bool) -> End:
    if is_present:
        return replace(end, seen_s=given.snapshot.taken_at_s)
    if end.gone_s is not None:
        return end
    return replace(end, gone_s=given.now_s)


def _taker(end: End, on_node: Iterable[Job]) -> Job | None:
    """Return the first job on a whole node that had waited for it; the one it was released for."""
    return min(
        (job for job in on_node if end.may_be_for(job)),
        key=lambda job: (not end.is_for(job), job.start_s or 0.0, job.job_id),
        default=None,
    )


def _verdict(
    end: End, ordinary: _Ordinary, given: DecisionInput, *, is_held_off: bool
) -> _Verdict | Why:
    """Return the state of an end whose node no ordinary job is on."""
    cycle_s = given.settings.cycle_s
    if end.gone_s is None:
        return _Verdict.OPEN
    if end.asked_s is None or end.is_preempted:
        if given.now_s > end.gone_s + CYCLES_UNTIL_TAKEN * cycle_s:
            return _Verdict.TAKEN
        return _Verdict.OPEN
    if end.job is None:
        if given.now_s > end.gone_s + cycle_s:
            return _Verdict.DROPPED
        return _Verdict.OPEN
    return _verdict_of_job(end.job, end.asked_s, ordinary, given, is_held_off=is_held_off)


def _verdict_of_job(
    job: Job, asked_s: float, ordinary: _Ordinary, given: DecisionInput, *, is_held_off: bool
) -> _Verdict | Why:
    """Return that of an end for a job."""
    candidates = ordinary.same_as(job)
    if not candidates:
        # The poll may have begun before the job was in the queue.
        if given.snapshot.taken_at_s > asked_s + 2.0 * UNSEEN_S:
            return Why.LEFT_THE_QUEUE
        return _Verdict.OPEN
    # Of several that an announced job may be, one that has started may be it.
    if any(candidate.state is not JobState.PENDING for candidate in candidates):
        return Why.STARTED_ELSEWHERE
    if is_held_off:
        return _Verdict.OPEN
    return Why.DID_NOT_START


def _vain(end: End, why: Why, now_s: float) -> Vain:
    family, asked_s = "", now_s
    if end.job is not None:
        family = end.job.family
    if end.asked_s is not None:
        asked_s = end.asked_s
    return Vain(
        job_id=end.job_id,
        family=family,
        node=end.node,
        pilot_id=end.pilot_id,
        asked_s=asked_s,
        settled_s=now_s,
        why=why,
        gpus=end.gpus,
        gpu_type=end.gpu_type,
    )


def _taken(end: End, cause: EndedBy, now_s: float) -> Taken:
    ended_s = now_s
    if end.gone_s is not None:
        ended_s = end.gone_s
    if end.left_s is not None:
        ended_s = end.left_s
    return Taken(
        node=end.node,
        pilot_id=end.pilot_id,
        ended_s=ended_s,
        settled_s=now_s,
        by=cause,
        gpus=end.gpus,
        gpu_type=end.gpu_type,
    )
