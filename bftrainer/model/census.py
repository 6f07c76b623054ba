"""The census: whose each part of the nodes of a snapshot is. Pure.

A part is GPUs of one type with their cores and memory of one node; a whole node is the largest
part. Decisions know parts by name. Only whole nodes are lent, so the name of a part is that of a
node as the batch system's adapter shows it.

A decision counts the parts once and hands the census to its stages, which read it. What the
snapshot alone shows is counted once for all decisions that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from operator import is_
from typing import Any, Final, ParamSpec, TypeVar

from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    NodeState,
    Snapshot,
    node_of,
)
from bftrainer.model.decision import PilotView
from bftrainer.model.lookups import by_name
from bftrainer.model.node_sets import NodeSets
from bftrainer.model.parts import NodePart

FREE_STATES: Final = (NodeState.IDLE, NodeState.PLANNED)
LOST_STATES: Final = (  # not usable
    NodeState.DRAINED,
    NodeState.DOWN,
    NodeState.RESERVED,
    NodeState.POWER_SAVING,
)
MOST_CACHED: Final = 1 << 14  # parts
MOST_CALLS: Final = 4  # hosts and parts, each with our pilots and without
Arguments = ParamSpec("Arguments")
Argument = TypeVar("Argument")
Result = TypeVar("Result")


def once_per_look(work: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Cache the result of a pure function; callers must not modify it.

    For its last two arguments: a decision sees hosts, and the same hosts by their parts.
    """
    return _once_for_the_last(2)(work)


def _once_for_the_last(
    n_calls: int,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Cache a pure function's results for its last calls, by the identity of the arguments."""

    def once(work: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        calls: tuple[tuple[tuple[Any, ...], Result], ...] = ()  # the latest first

        @wraps(work)
        def cached(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            nonlocal calls
            past_calls, call_of = calls, (*arguments, *named.values())
            for call in past_calls:
                past_arguments, result = call
                if all(map(is_, past_arguments, call_of)):
                    if call is not past_calls[0]:
                        calls = (call, *[past for past in past_calls if past is not call])
                    return result
            result = work(*arguments, **named)
            calls = ((call_of, result), *past_calls[: n_calls - 1])
            return result

        return cached

    return once


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCensus:
    """Whose each part is; keys and sets are of names of parts."""

    snapshot: Snapshot
    sets: NodeSets  # the parts as bits
    by_name: Mapping[str, Node]  # the node of each part, as the batch system shows it
    parts: Mapping[str, NodePart]  # those that are free, or have one of our pilots

    # By what the batch system shows.
    free: AbstractSet[str]  # nothing runs there, and a job may start
    lost: AbstractSet[str]  # no job of anybody may start
    completing: AbstractSet[str]  # the last job still ends
    # Occupied by ordinary jobs. Nodes and jobs are not read at the same instant: what is shown free
    # counts as free.
    taken: AbstractSet[str]
    unoccupied: AbstractSet[str]  # neither lost nor taken, whatever state they show
    pilot_of: Mapping[str, str]  # pilots that have nodes, ours and those of other daemons
    pending_jobs: Sequence[Job]  # ordinary ones that have not started, in snapshot order
    has_startable_jobs: bool  # one of them might start if it had nodes
    shown_pilots: AbstractSet[str]  # of all daemons, pending or not

    # By what they are to us; empty unless pilots were counted.
    ours: Mapping[str, PilotView] = field(default_factory=dict)  # with a pilot that stays
    leaving: AbstractSet[str] = frozenset()  # with a pilot of ours that was released
    # Those of ``ours`` that a job could have. Where pilots come last, a pending pilot delays no
    # job. Nor does one that has started since the snapshot: the cycle that started it has served
    # the jobs before it.
    in_the_way: Mapping[str, PilotView] = field(default_factory=dict)
    # With a pilot of another daemon, which gives them back for the same jobs. They come after ours,
    # so that two daemons do not wait for each other.
    of_others: AbstractSet[str] = frozenset()
    has_other_daemons: bool = False  # their pilots are in the queue


def census_of(snapshot: Snapshot, pilots: Iterable[PilotView] = ()) -> NodeCensus:
    """Count a snapshot against our pilots that have not ended.

    Nodes and jobs that are unread count as none.
    """
    nodes, queue = snapshot.nodes or (), _QUEUES.of(snapshot.jobs or ())
    our_pilots = _PILOTS.of(tuple(pilots))
    return replace(
        _with_ours(_shown(nodes, queue.placed), our_pilots, snapshot.pilots_come_last),
        snapshot=snapshot,
        pending_jobs=queue.pending,
        has_startable_jobs=_has_startable_jobs(snapshot),
    )


def whole(node: Node) -> NodePart:
    """Return the largest part of a node."""
    return _part(node.name, node.node_type, node.gpus, node.cpus, node.memory_mb)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Placed:
    """What a queue shows besides the ordinary jobs that have not started."""

    occupied: AbstractSet[str]  # by ordinary jobs
    pilot_of: Mapping[str, str]
    shown_pilots: AbstractSet[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    """The jobs of a snapshot."""

    jobs: tuple[Job, ...]
    placed: _Placed
    pending: list[Job]  # ordinary ones that have not started


class _LastQueues:
    """The last queues; of one with some jobs more at its end only those are counted.

    Announced jobs come after those of the look. What they leave as it was stays the same object.
    """

    def __init__(self) -> None:
        self._queues: list[_Queue] = []

    def of(self, jobs: tuple[Job, ...]) -> _Queue:
        for queue in self._queues:
            if queue.jobs is jobs:
                return queue
        for queue in self._queues:
            came = jobs_that_came(jobs, queue.jobs)
            if came is not None:
                return self._keep(replace(queue, jobs=jobs, pending=[*queue.pending, *came]))
        return self._keep(_queue_of(jobs))

    def _keep(self, queue: _Queue) -> _Queue:
        self._queues = [queue, *self._queues[: MOST_CALLS - 1]]
        return queue


def jobs_that_came(jobs: tuple[Job, ...], before: tuple[Job, ...]) -> tuple[Job, ...] | None:
    """Return the jobs after these same ones; None: something else has changed.

    Announced jobs come last, and are ordinary ones that wait.
    """
    came = jobs[len(before) :]
    if all(map(_waits, came)) and begins_with(jobs, before):
        return came
    return None


def _waits(job: Job) -> bool:
    return job.state is JobState.PENDING and job.pilot_id is None


def begins_with(longer: tuple[object, ...], beginning: tuple[object, ...]) -> bool:
    """Return whether the first ones are these same objects."""
    return len(longer) >= len(beginning) and all(map(is_, longer, beginning))


def is_as_before(these: tuple[object, ...], before: tuple[object, ...]) -> bool:
    """Return whether they are the same objects."""
    return len(these) == len(before) and begins_with(these, before)


class _LastPilots:
    """Our pilots: the same tuple as long as they are the same."""

    def __init__(self) -> None:
        self._pilots: tuple[PilotView, ...] = ()

    def of(self, pilots: tuple[PilotView, ...]) -> tuple[PilotView, ...]:
        if not pilots:
            return ()
        before = self._pilots
        if is_as_before(pilots, before):
            return before
        self._pilots = pilots
        return pilots


_NOTHING_SHOWN: Final = Snapshot(taken_at_s=0.0, nodes=None, jobs=None)
_QUEUES, _PILOTS = _LastQueues(), _LastPilots()


@once_per_look
def _has_startable_jobs(snapshot: Snapshot) -> bool:
    queue = _QUEUES.of(snapshot.jobs or ())
    return any(not why_it_waits(job, snapshot.taken_at_s) for job in queue.pending)


def _queue_of(jobs: tuple[Job, ...]) -> _Queue:
    pending = JobState.PENDING
    occupied = set[str]()
    pilot_of: dict[str, str] = {}
    pending_jobs: list[Job] = []
    shown_pilots = set[str]()
    for job in jobs:
        pilot_id = job.pilot_id
        if pilot_id is None:
            if job.state is pending:
                pending_jobs.append(job)
            else:
                occupied.update(job.nodes)
            continue
        shown_pilots.add(pilot_id)
        if job.state is not pending:
            for name in job.nodes:
                pilot_of[name] = pilot_id
    placed = _Placed(occupied=occupied, pilot_of=pilot_of, shown_pilots=shown_pilots)
    return _Queue(jobs=jobs, placed=placed, pending=pending_jobs)


@_once_for_the_last(MOST_CALLS)
def _shown(nodes: tuple[Node, ...], placed: _Placed) -> NodeCensus:
    """Count what nodes and started jobs show; nothing waits, and no pilot is ours."""
    free_nodes, lost_nodes = _in_states(nodes, *FREE_STATES), _in_states(nodes, *LOST_STATES)
    by_name, taken_nodes = _by_name(nodes), placed.occupied - free_nodes
    return NodeCensus(
        snapshot=_NOTHING_SHOWN,
        sets=_sets_of(nodes),
        by_name=by_name,
        parts=_free_parts(nodes),
        free=free_nodes,
        lost=lost_nodes,
        completing=_in_states(nodes, NodeState.COMPLETING),
        taken=taken_nodes,
        unoccupied=by_name.keys() - lost_nodes - taken_nodes,
        pilot_of=placed.pilot_of,
        pending_jobs=(),
        has_startable_jobs=False,
        shown_pilots=placed.shown_pilots,
    )


@_once_for_the_last(MOST_CALLS)
def _with_ours(
    census: NodeCensus, pilots: tuple[PilotView, ...], pilots_come_last: bool
) -> NodeCensus:
    """Count what is shown against our pilots."""
    ours: dict[str, PilotView] = {}
    leaving = set[str]()
    pilot_ids = set[str]()
    for pilot in pilots:
        pilot_ids.add(pilot.pilot_id)
        if pilot.is_leaving:
            leaving.add(pilot.node)
        else:
            ours[pilot.node] = pilot
    piloted_nodes = leaving | ours.keys()
    could_be_had = census.unoccupied
    if pilots_come_last:
        could_be_had = census.unoccupied - census.free
    others_nodes = {name for name, pilot in census.pilot_of.items() if pilot not in pilot_ids}
    return replace(
        census,
        parts={**census.parts, **_parts(census.by_name, piloted_nodes - census.free)},
        ours=ours,
        leaving=leaving,
        in_the_way={name: pilot for name, pilot in ours.items() if name in could_be_had},
        of_others=(others_nodes & census.unoccupied) - census.free - piloted_nodes,
        has_other_daemons=not census.shown_pilots <= pilot_ids,
    )


def why_it_waits(job: Job, now_s: float) -> str:
    """Say why a job cannot start now whatever is free; "": no reason known."""
    if not job.is_entitled:
        dependency = f" ({job.waits_for})" if job.waits_for else ""
        reason = job.reason or "it does not say why"
        return f"The batch system does not start it: {reason}{dependency}."
    if job.begin_s is not None and job.begin_s > now_s:
        return "Its begin time has not come."
    return ""


def _in_states(nodes: tuple[Node, ...], *states: NodeState) -> AbstractSet[str]:
    by_state = _by_state(nodes)
    names = set[str]()
    for state in states:
        names.update(by_state.get(state, ()))
    return names


def _parts(by_name: Mapping[str, Node], names: Iterable[str]) -> dict[str, NodePart]:
    parts: dict[str, NodePart] = {}
    for name in names:
        node = by_name.get(name)
        if node is not None:
            parts[name] = whole(node)
    return parts


# By the tuple of nodes and not by the snapshot: it stays the same where only jobs have changed.
@once_per_look
def _by_name(nodes: tuple[Node, ...]) -> Mapping[str, Node]:
    return by_name(nodes)


@once_per_look
def _by_state(nodes: tuple[Node, ...]) -> Mapping[NodeState, AbstractSet[str]]:
    names: dict[NodeState, set[str]] = {}
    for node in nodes:
        names.setdefault(node.state, set()).add(node.name)
    return names


@once_per_look
def _free_parts(nodes: tuple[Node, ...]) -> Mapping[str, NodePart]:
    return _parts(_by_name(nodes), _in_states(nodes, *FREE_STATES))


@once_per_look
def _sets_of(nodes: tuple[Node, ...]) -> NodeSets:
    return NodeSets.of(nodes)


@lru_cache(maxsize=MOST_CACHED)  # mostly the same in every decision
def _part(name: str, gpu_type: str, gpus: int, cores: int, memory_mb: int) -> NodePart:
    return NodePart(
        name=name,
        node=node_of(name),
        gpu_type=gpu_type,
        gpus=gpus,
        cores=cores,
        memory_mb=memory_mb,
    )
