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

All of this is of hosts, also where pilots have parts of them. Where several share a host, what
leaves it in one look is one release, of pilots and of ordinary jobs; a host that completes for long
while another job runs on it is as it should be; and only a pilot that started after another had
gone shows that the host was left well.

After such an event the node gets no pilot for a time that doubles with each one (``cooling``),
from when it is usable again. Events are journalled with the harm records, from which a restarted
daemon reads them. Called by ``bftrainer.daemon.harm.book``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from bftrainer.daemon.harm.ends import lent_part
from bftrainer.model.cluster import (
    REBOOTS,
    STILL_COMPLETING,
    Job,
    JobState,
    Node,
    NodeState,
    Snapshot,
    node_of,
)
from bftrainer.model.decision import Cooling, DecisionInput, PilotView, Plan

# UnkillableStepTimeout, after which Slurm drains the node: 60 s by default (slurm.conf(5)); and
# the longest time between two polls by the default policy.
WINDOW_S = 60.0 + 30.0
RESTS_PER_COOL_DOWN = 60.0  # the first rest, in times of the policy's ``quarantine_s``: 10 min
MOST_S = 86_400.0  # of a rest
MOST_DOUBLED = 16  # times
QUIET_S = 4.0 * MOST_S  # without an event; then all is forgotten


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A node that a pilot of ours has left."""

    node: str
    pilot_id: str
    asked_s: float | None  # our order or the agent's SIGTERM; None: unknown
    gone_s: float  # end of the first poll without its job
    precision_s: float  # possible error of gone_s
    is_one_more: bool = False  # others left the host in the same look: the host counts once
    ADDED: ClassVar = frozenset({"is_one_more"})

    @property
    def took_s(self) -> float | None:
        """Time until its processes were gone, in seconds: an upper bound."""
        if self.asked_s is None:
            return None
        return max(0.0, self.gone_s - self.asked_s)


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
    shared: frozenset[str] = frozenset()  # hosts of which pilots have had parts
    spoilt: frozenset[str] = frozenset()  # nodes that were unusable in it
    looked_s: float = 0.0  # when it was taken
    watches: Mapping[Key, _Watch] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AftermathRecords:
    """Results of one snapshot."""

    left: tuple[Departure, ...] = ()
    unusable: tuple[Unusable, ...] = ()
    ordinary_left: int = 0  # nodes that ordinary jobs left


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """What a snapshot shows of the nodes that jobs leave."""

    at_s: float
    running: Mapping[str, Job]
    spoilt: Mapping[str, Node]
    completing: frozenset[str] = frozenset()
    pilots: Mapping[str, float] = field(default_factory=dict)  # node -> last start of one on it


def told(state: Aftermath, pilot_id: str, told_s: float) -> Aftermath:
    """Record when an agent was told to leave, unless we had asked before."""
    if pilot_id in state.asked_s:
        return state
    asked_s = {pilot_id: told_s, **state.asked_s}
    return replace(state, asked_s=asked_s, told=state.told | {pilot_id})


def fold(state: Aftermath, given: DecisionInput, plan: Plan) -> tuple[Aftermath, AftermathRecords]:
    """Process one decision: what its snapshot shows, and what it releases."""
    records = AftermathRecords()
    shared = _shared(given.pilots)
    if not shared <= state.shared:
        state = replace(state, shared=state.shared | shared)
    if given.is_new_snapshot and _is_whole(given.snapshot):
        state, records = _look(state, given.snapshot, given.now_s)
    if plan.releases or state.asked_s:
        state = _with_releases(state, given, plan)
    return state, records


def _with_releases(state: Aftermath, given: DecisionInput, plan: Plan) -> Aftermath:
    """Add when pilots were asked to leave, and forget those that are over."""
    pilot_ids = {pilot.pilot_id for pilot in given.pilots}
    for watch in state.watches.values():
        pilot_ids.add(watch.job.pilot_id or "")
    for job in state.running.values():
        pilot_ids.add(job.pilot_id or "")
    asked_s = {release.pilot_id: given.now_s for release in plan.releases} | dict(state.asked_s)
    for pilot_id in asked_s.keys() - pilot_ids:
        del asked_s[pilot_id]
    return replace(state, asked_s=asked_s, told=state.told & pilot_ids)


def _is_whole(snapshot: Snapshot) -> bool:
    return not {"nodes", "jobs"} & {*snapshot.unread} and None not in (
        snapshot.nodes,
        snapshot.jobs,
    )


def _shared(pilots: Iterable[PilotView]) -> set[str]:
    parts = list(map(lent_part, pilots))
    return {part.node for part in parts if part is not None}


def _look(state: Aftermath, snapshot: Snapshot, now_s: float) -> tuple[Aftermath, AftermathRecords]:
    view = _Shown(at_s=snapshot.taken_at_s, running=_running(snapshot), spoilt=_spoilt(snapshot))
    ours = set(state.ours)
    for job_id in view.running.keys() - state.running.keys():
        if view.running[job_id].pilot_id is not None:
            ours.update(view.running[job_id].nodes)
    begun = _with_ends(state, view, frozenset(ours))
    if begun:
        completing = _completing(snapshot) - _in_use(view.running.values(), state.shared)
        pilots = _with_pilots(view.running.values())
        view = replace(view, completing=frozenset(completing), pilots=pilots)
    watches: dict[Key, _Watch] = {}
    departed: list[_Watch] = []
    unusable: list[Unusable] = []
    for key, before in begun.items():
        watch, job, node = before, view.running.get(before.job.job_id), before.node
        if before.gone_s is None and (job is None or node not in job.nodes):
            watch = replace(before, gone_s=now_s)
            departed.append(watch)
        if _is_well(before, state, view):
            watch = replace(watch, is_settled=True)
        elif event := _event(watch, state, view):
            unusable.append(event)
            watch = replace(watch, is_settled=True)
        if watch.gone_s is None or not (watch.is_settled or view.at_s - watch.gone_s > WINDOW_S):
            watches[key] = watch
    after = replace(
        state,
        running=view.running,
        ours=frozenset(ours),
        spoilt=frozenset(view.spoilt),
        looked_s=view.at_s,
        watches=watches,
    )
    return after, _records(departed, unusable, state, now_s)


def _records(
    departed: Iterable[_Watch], unusable: Iterable[Unusable], state: Aftermath, now_s: float
) -> AftermathRecords:
    """Return what a look shows, of a shared host once for pilots and once for ordinary jobs."""
    departures: list[Departure] = []
    ordinary_left = 0
    left_by_pilots: set[str] = set()
    left_by_jobs: set[str] = set()
    for watch in departed:
        node, pilot_id = watch.node, watch.job.pilot_id
        if pilot_id is not None:
            departure = _departure(watch, pilot_id, state, now_s)
            is_one_more = node in left_by_pilots and node in state.shared
            departures.append(replace(departure, is_one_more=is_one_more))
            left_by_pilots.add(node)
        elif node not in left_by_jobs or node not in state.shared:
            ordinary_left += 1
            left_by_jobs.add(node)
    events: list[Unusable] = []
    keys: set[tuple[str, bool]] = set()
    for event in unusable:
        key = event.node, bool(event.pilot_id)
        if key not in keys or event.node not in state.shared:
            events.append(event)
            keys.add(key)
    return AftermathRecords(
        left=tuple(departures), unusable=tuple(events), ordinary_left=ordinary_left
    )


def _is_well(watch: _Watch, state: Aftermath, view: _Shown) -> bool:
    """Return whether a node was left well, or is to be rebooted."""
    node = watch.node
    if node in view.spoilt and view.spoilt[node].reason == REBOOTS:
        return True
    if watch.gone_s is None or node not in view.pilots:
        return False
    return node not in state.shared or view.pilots[node] > watch.gone_s


def _running(snapshot: Snapshot) -> dict[str, Job]:
    running: dict[str, Job] = {}
    for job in snapshot.jobs or ():
        if job.nodes and job.state is not JobState.PENDING:
            running[job.job_id] = job
    return running


def _spoilt(snapshot: Snapshot) -> dict[str, Node]:
    spoilt: dict[str, Node] = {}
    for node in snapshot.nodes or ():
        is_down = node.state is NodeState.DOWN and node.reason != STILL_COMPLETING
        if is_down or node.state is NodeState.DRAINED:
            spoilt[node.name] = node
    return spoilt


def _completing(snapshot: Snapshot) -> set[str]:
    completing: set[str] = set()
    for node in snapshot.nodes or ():
        if node.state is NodeState.COMPLETING or node.reason == STILL_COMPLETING:
            completing.add(node.name)
    return completing


def _in_use(jobs: Iterable[Job], shared: frozenset[str]) -> set[str]:
    """Return the shared hosts on which a job runs that does not end."""
    in_use: set[str] = set()
    for job in jobs:
        if job.state is not JobState.COMPLETING:
            in_use.update(shared.intersection(job.nodes))
    return in_use


def _with_pilots(jobs: Iterable[Job]) -> dict[str, float]:
    """Return the last start of a pilot on each node that has one."""
    starts_s: dict[str, float] = {}
    for job in jobs:
        if job.pilot_id:
            for node in job.nodes:
                starts_s[node] = max(job.start_s or 0.0, starts_s.get(node, 0.0))
    return starts_s


def _with_ends(state: Aftermath, view: _Shown, ours: frozenset[str]) -> Mapping[Key, _Watch]:
    """Return the watches with those of jobs that have begun to leave since the last snapshot."""
    spoilt = view.spoilt
    begun = dict[Key, _Watch]()
    for job, node in _ends(state, view.running, ours):
        # The node's fall itself makes a job complete, and slurmd sends the agent SIGTERM then.
        ends_itself = job.pilot_id is None and job.state is JobState.COMPLETING
        is_ours = job.pilot_id in state.asked_s and job.pilot_id not in state.told
        is_asked = ends_itself or is_ours
        fell = node in spoilt and spoilt[node].state is NodeState.DOWN and not is_asked
        if not ((node, job.job_id) in state.watches or node in state.spoilt or fell):
            begun[node, job.job_id] = _Watch(job=job, node=node, began_s=view.at_s)
    if not begun:
        return state.watches
    left_again = {watch.node for watch in begun.values()}
    watches = dict(state.watches)
    for key, watch in state.watches.items():
        if watch.node in left_again:
            watches[key] = replace(watch, is_settled=True)
    return watches | begun


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


def _departure(watch: _Watch, pilot_id: str, state: Aftermath, now_s: float) -> Departure:
    asked_s = state.asked_s.get(pilot_id)
    from_s = max(state.looked_s, asked_s or 0.0)
    return Departure(
        node=watch.node,
        pilot_id=pilot_id,
        asked_s=asked_s,
        gone_s=now_s,
        precision_s=max(0.0, now_s - from_s),
    )


def _event(watch: _Watch, state: Aftermath, view: _Shown) -> Unusable | None:
    if watch.is_settled:
        return None
    node, pilot_id = view.spoilt.get(watch.node), watch.job.pilot_id or ""
    node_state, reason = NodeState.COMPLETING, ""
    if node is not None:
        node_state, reason = node.state, node.reason
        is_in_time = watch.gone_s is None or view.at_s - watch.gone_s <= WINDOW_S
    else:
        is_there = watch.gone_s is None and watch.node in view.completing
        is_in_time = is_there and view.at_s - watch.began_s > WINDOW_S
    if not is_in_time:
        return None
    return Unusable(
        node=watch.node,
        state=node_state,
        reason=reason,
        at_s=view.at_s,
        after_s=max(0.0, view.at_s - state.asked_s.get(pilot_id, watch.began_s)),
        job_id=watch.job.job_id,
        pilot_id=pilot_id,
    )


# ---- nodes at rest ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The events on one node, without a quiet time between them."""

    events: int
    last: Unusable
    spoilt_s: float  # when it was last seen unusable


Rests = Mapping[str, Rest]  # by node, the host of parts


def with_events(rests: Rests, unusable: Iterable[Unusable]) -> Rests:
    """Add events, in order; those of ordinary jobs are not held against a node."""
    rests_after = dict(rests)
    for event in unusable:
        if event.pilot_id:
            host = node_of(event.node)  # earlier releases wrote parts
            events, before = 1, rests_after.get(host)
            if before is not None and event.at_s - before.spoilt_s <= QUIET_S:
                events = before.events + 1
            rests_after[host] = Rest(events=events, last=event, spoilt_s=event.at_s)
    return rests_after


def still_spoilt(rests: Rests, names: Iterable[str], at_s: float) -> Rests:
    """Let the rest of nodes that are unusable begin only when they are usable again."""
    rests_after = dict(rests)
    for name in names:
        if name in rests:
            rests_after[name] = replace(rests[name], spoilt_s=at_s)
    return rests_after


def cooling(rests: Rests, cool_down_s: float, now_s: float) -> Mapping[str, Cooling]:
    """Return the nodes that get no pilot now, nor do parts of them (``node_of``).

    Args:
        rests: by node.
        cool_down_s: the policy's ``quarantine_s``; 0: nodes never rest.
        now_s: seconds since the epoch.
    """
    cooling_nodes: dict[str, Cooling] = {}
    for name, node_rest in sorted(rests.items()):
        n_doubled = min(MOST_DOUBLED, node_rest.events - 1)
        rest_s = min(MOST_S, RESTS_PER_COOL_DOWN * cool_down_s * 2.0**n_doubled)
        left_s = node_rest.spoilt_s + rest_s - now_s
        if 0.0 < left_s <= rest_s:  # more: the clock was set back
            cooling_nodes[name] = Cooling(
                until_s=now_s + left_s,
                failures=node_rest.events,
                trainer_id="",
                cause=in_words(node_rest.last.state, node_rest.last.reason, node_rest.last.after_s),
            )
    return cooling_nodes


def in_words(state: str, reason: str, after_s: float) -> str:
    """Say in which state a node was, why, and how soon."""
    because = ""
    if reason:
        because = f" ({reason})"
    return f"{state}{because} {after_s:.0f} s after its release"
