"""Watches nodes that a pilot or an ordinary job leaves: until it is gone, and then. Pure.

A job has left a node when the queue shows it there no more: its processes and the epilog have
ended. From our order, or the agent's SIGTERM, until then is the time that a node takes to be free
of our processes (``Departure``). It is an upper bound, too long by ``precision_s`` at most.

A node that becomes drained or down within ``WINDOW_S`` after that, or completes for longer, is
``Unusable``. Reasons are free text and prove nothing: an administrator may drain a node for a
reason of their own. So ordinary jobs on the same nodes are counted by the same rules, and harm is
what pilots have above their rate. A node counts for the last job that left it. A node that was
unusable before the end began, or went down under a job that nobody had asked to leave, is no
release at all; a node on which a pilot runs again was left well; a reboot that was ordered is
nobody's harm.

After such an event the node gets no pilot for a time that doubles with each one (``cooling``),
from when it is usable again. Events are journalled with the harm records, from which a restarted
daemon reads them. Called by ``bftrainer.daemon.harm.monitor``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bftrainer.model.cluster import (
    REBOOTS,
    STILL_COMPLETING,
    Job,
    JobState,
    Node,
    NodeState,
    Snapshot,
)
from bftrainer.model.decision import Cooling, DecisionInput, Plan

# UnkillableStepTimeout, after which Slurm drains the node: 60 s by default (slurm.conf(5)); and
# the longest time between two polls by the default policy.
WINDOW_S = 60.0 + 30.0
RESTS_PER_COOL_DOWN = 60.0  # the first rest, in times of the policy's ``quarantine_s``: 10 min
MOST_S = 86_400.0  # of a rest
QUIET_S = 4.0 * MOST_S  # without an event; then all is forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A node that a pilot of ours has left."""

    node: str
    pilot_id: str
    asked_s: float | None  # our order or the agent's SIGTERM; None: unknown
    gone_s: float  # end of the first poll without its job
    precision_s: float  # possible error of gone_s

    @property
    def took_s(self) -> float | None:
        """Time until its processes were gone, in seconds: an upper bound."""
        return None if self.asked_s is None else max(0.0, self.gone_s - self.asked_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A node that became unusable soon after a pilot or an ordinary job left it."""

    node: str
    state: NodeState  # drained, down or completing
    reason: str  # the batch system's words
    at_s: float  # begin of the poll that showed it
    after_s: float  # since the release, or the first sign of the end
    job_id: str
    pilot_id: str = ""  # "": of an ordinary job


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watch:
    """A job on its way out of a node, or gone for less than the window."""

    job: Job
    node: str
    began_s: float
    gone_s: float | None = None
    is_settled: bool = False  # it had its event, or another job left the node later


Key = tuple[str, str]  # node, job id


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """State of the fold."""

    asked_s: Mapping[str, float] = field(default_factory=dict)  # by pilot
    told: frozenset[str] = frozenset()  # pilots of these whose agent had SIGTERM before our order
    running: Mapping[str, Job] = field(default_factory=dict)  # in the last snapshot, by id
    ours: frozenset[str] = frozenset()  # nodes that have had pilots
    spoilt: frozenset[str] = frozenset()  # nodes that were unusable in it
    looked_s: float = 0.0  # when it was taken
    watches: Mapping[Key, _Watch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AftermathRecords:
    """Results of one snapshot."""

    left: tuple[Departure, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    ordinary_left: int = 0  # nodes that ordinary jobs left


def told(state: Aftermath, pilot_id: str, told_s: float) -> Aftermath:
    """Record when an agent was told to leave, unless we had asked before."""
    if pilot_id in state.asked_s:
        return state
    asked_s = {pilot_id: told_s, **state.asked_s}
    return replace(state, asked_s=asked_s, told=state.told | {pilot_id})


def fold(state: Aftermath, given: DecisionInput, plan: Plan) -> tuple[Aftermath, AftermathRecords]:
    """Process one decision: what its snapshot shows, and what it releases."""
    seen = AftermathRecords()
    if given.is_new_snapshot and _is_whole(given.snapshot):
        state, seen = _look(state, given.snapshot, given.now_s)
    if plan.releases or state.asked_s:
        open_ = {w.job.pilot_id for w in state.watches.values()}
        open_ |= {p.pilot_id for p in given.pilots} | {j.pilot_id for j in state.running.values()}
        asked_s = {r.pilot_id: given.now_s for r in plan.releases} | dict(state.asked_s)
        state = replace(
            state,
            asked_s={i: at_s for i, at_s in asked_s.items() if i in open_},
            told=state.told & open_,
        )
    return state, seen


def _is_whole(snapshot: Snapshot) -> bool:
    return not {"nodes", "jobs"} & {*snapshot.unread} and None not in (
        snapshot.nodes,
        snapshot.jobs,
    )


def _look(state: Aftermath, snapshot: Snapshot, now_s: float) -> tuple[Aftermath, AftermathRecords]:
    at_s = snapshot.taken_at_s
    pending, drained, down = JobState.PENDING, NodeState.DRAINED, NodeState.DOWN
    running = {j.job_id: j for j in snapshot.jobs or () if j.nodes and j.state is not pending}
    spoilt = {
        n.name: n
        for n in snapshot.nodes or ()
        if n.state is drained or (n.state is down and n.reason != STILL_COMPLETING)
    }
    new = running.keys() - state.running.keys()
    ours = state.ours.union(*(running[i].nodes for i in new if running[i].pilot_id is not None))
    known = _with_ends(state, running, spoilt, ours, at_s)
    completing = {
        n.name
        for n in (snapshot.nodes if known else None) or ()
        if n.state is NodeState.COMPLETING or n.reason == STILL_COMPLETING
    }
    again = {n for j in (running.values() if known else ()) if j.pilot_id for n in j.nodes}
    watches, left, unusable, ordinary = dict[Key, _Watch](), list[Departure](), list[Unusable](), 0
    for key, watch in known.items():
        job = running.get(key[1])
        one = watch
        if watch.gone_s is None and (job is None or watch.node not in job.nodes):
            one = replace(watch, gone_s=now_s)
            if watch.job.pilot_id is None:
                ordinary += 1
            else:
                left.append(_left(one, watch.job.pilot_id, state, now_s))
        is_well = watch.gone_s is not None and watch.node in again
        if is_well or (watch.node in spoilt and spoilt[watch.node].reason == REBOOTS):
            one = replace(one, is_settled=True)
        elif event := _event(one, state, spoilt, completing, at_s):
            unusable.append(event)
            one = replace(one, is_settled=True)
        if one.gone_s is None or not (one.is_settled or at_s - one.gone_s > WINDOW_S):
            watches[key] = one
    after = replace(
        state,
        running=running,
        ours=ours,
        spoilt=frozenset(spoilt),
        looked_s=at_s,
        watches=watches,
    )
    return after, AftermathRecords(
        left=tuple(left), unusable=tuple(unusable), ordinary_left=ordinary
    )


def _with_ends(
    state: Aftermath,
    running: Mapping[str, Job],
    spoilt: Mapping[str, Node],
    ours: frozenset[str],
    at_s: float,
) -> Mapping[Key, _Watch]:
    """Return the watches with those of jobs that have begun to leave since the last snapshot."""
    begun = dict[Key, _Watch]()
    for job, node in _ends(state, running, ours):
        # The node's fall itself makes a job complete, and slurmd sends the agent SIGTERM then.
        ends_itself = job.pilot_id is None and job.state is JobState.COMPLETING
        is_ours = job.pilot_id in state.asked_s and job.pilot_id not in state.told
        is_asked = ends_itself or is_ours
        fell = node in spoilt and spoilt[node].state is NodeState.DOWN and not is_asked
        if not ((node, job.job_id) in state.watches or node in state.spoilt or fell):
            begun[node, job.job_id] = _Watch(job=job, node=node, began_s=at_s)
    if not begun:
        return state.watches
    again = {node for node, _ in begun}
    earlier = {
        key: replace(one, is_settled=one.is_settled or one.node in again)
        for key, one in state.watches.items()
    }
    return {**earlier, **begun}


def _ends(
    state: Aftermath, running: Mapping[str, Job], ours: frozenset[str]
) -> Iterator[tuple[Job, str]]:
    """Return the jobs that end or have ended, with each node of ours that they were on.

    A completing job's list of nodes lacks those that are free already.
    """
    for job_id, before in state.running.items():
        job = running.get(job_id)
        if job is before:  # it has not changed
            continue
        if job is None or job.state is JobState.COMPLETING:
            for node in before.nodes:
                if node in ours:
                    yield job or before, node


def _left(one: _Watch, pilot_id: str, state: Aftermath, now_s: float) -> Departure:
    asked_s = state.asked_s.get(pilot_id)
    from_s = max(state.looked_s, asked_s or 0.0)
    return Departure(
        node=one.node,
        pilot_id=pilot_id,
        asked_s=asked_s,
        gone_s=now_s,
        precision_s=max(0.0, now_s - from_s),
    )


def _event(
    one: _Watch,
    state: Aftermath,
    spoilt: Mapping[str, Node],
    completing: set[str],
    at_s: float,
) -> Unusable | None:
    if one.is_settled:
        return None
    node, pilot_id = spoilt.get(one.node), one.job.pilot_id or ""
    if node is not None:
        is_it = one.gone_s is None or at_s - one.gone_s <= WINDOW_S
    else:
        is_it = one.gone_s is None and one.node in completing and at_s - one.began_s > WINDOW_S
    if not is_it:
        return None
    return Unusable(
        node=one.node,
        state=NodeState.COMPLETING if node is None else node.state,
        reason="" if node is None else node.reason,
        at_s=at_s,
        after_s=max(0.0, at_s - state.asked_s.get(pilot_id, one.began_s)),
        job_id=one.job.job_id,
        pilot_id=pilot_id,
    )


# ---- nodes at rest ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The events on one node, without a quiet time between them."""

    events: int
    last: Unusable
    spoilt_s: float  # when it was last seen unusable


Rests = Mapping[str, Rest]  # by node


def with_events(rests: Rests, found: Iterable[Unusable]) -> Rests:
    """Add events, in order; those of ordinary jobs are not held against a node."""
    known = dict(rests)
    for event in found:
        if event.pilot_id:
            before = known.get(event.node)
            is_first = before is None or event.at_s - before.spoilt_s > QUIET_S
            events = 1 if before is None or is_first else before.events + 1
            known[event.node] = Rest(events=events, last=event, spoilt_s=event.at_s)
    return known


def still_spoilt(rests: Rests, names: Iterable[str], at_s: float) -> Rests:
    """Let the rest of nodes that are unusable begin only when they are usable again."""
    known = {n: replace(rests[n], spoilt_s=at_s) for n in names if n in rests}
    return {**rests, **known} if known else rests


def cooling(rests: Rests, cool_down_s: float, now_s: float) -> Mapping[str, Cooling]:
    """Return the nodes that get no pilot now.

    Args:
        rests: by node.
        cool_down_s: the policy's ``quarantine_s``; 0: nodes never rest.
        now_s: seconds since the epoch.
    """
    found = dict[str, Cooling]()
    for name, one in sorted(rests.items()):
        rest_s = RESTS_PER_COOL_DOWN * cool_down_s * 2.0 ** min(16, one.events - 1)
        rest_s = min(MOST_S, rest_s)
        left_s = one.spoilt_s + rest_s - now_s
        if 0.0 < left_s <= rest_s:  # more: the clock was set back
            found[name] = Cooling(
                until_s=now_s + left_s,
                failures=one.events,
                trainer_id="",
                cause=in_words(one.last.state, one.last.reason, one.last.after_s),
            )
    return found


def in_words(state: str, reason: str, after_s: float) -> str:
    """Say in which state a node was, why, and how soon."""
    because = f" ({reason})" if reason else ""
    return f"{state}{because} {after_s:.0f} s after its release"
