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
from typing import Final, TypeVar

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
Argument = TypeVar("Argument")
Result = TypeVar("Result")


def once_per_look(work: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Cache the result of a pure function; callers must not modify it.

    For its last two arguments: a decision sees hosts, and the same hosts by their parts.
    """
    last: tuple[Argument, Result] | None = None
    before: tuple[Argument, Result] | None = None

    @wraps(work)
    def cached(argument: Argument) -> Result:
        nonlocal last, before
        for call in (last, before):
            if call is None:
                continue
            past_argument, result = call
            if past_argument is argument:
                if call is before:
                    last, before = before, last
                return result
        result = work(argument)
        last, before = (argument, result), last
        return result

    return cached


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
    census = _shown(snapshot)
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
    return replace(
        census,
        parts={**census.parts, **_parts(census.by_name, piloted_nodes - census.free)},
        ours=ours,
        leaving=leaving,
        in_the_way=_in_the_way(census, ours),
        of_others=_of_others(census, pilot_ids) - piloted_nodes,
        has_other_daemons=not census.shown_pilots <= pilot_ids,
    )


def whole(node: Node) -> NodePart:
    """Return the largest part of a node."""
    return _part(node.name, node.node_type, node.gpus, node.cpus, node.memory_mb)


@once_per_look
def _shown(snapshot: Snapshot) -> NodeCensus:
    """Count what the batch system shows."""
    nodes, pending = snapshot.nodes or (), JobState.PENDING
    free_nodes, lost_nodes = _in_states(nodes, *FREE_STATES), _in_states(nodes, *LOST_STATES)
    occupied = set[str]()
    pilot_of: dict[str, str] = {}
    pending_jobs: list[Job] = []
    shown_pilots = set[str]()
    for job in snapshot.jobs or ():
        if job.pilot_id is not None:
            shown_pilots.add(job.pilot_id)
        if job.state is pending:
            if job.pilot_id is None:
                pending_jobs.append(job)
        elif job.pilot_id is None:
            occupied.update(job.nodes)
        else:
            pilot_of.update(dict.fromkeys(job.nodes, job.pilot_id))
    by_name, taken_nodes = _by_name(nodes), occupied - free_nodes
    return NodeCensus(
        snapshot=snapshot,
        sets=_sets_of(nodes),
        by_name=by_name,
        parts=_free_parts(nodes),
        free=free_nodes,
        lost=lost_nodes,
        completing=_in_states(nodes, NodeState.COMPLETING),
        taken=taken_nodes,
        unoccupied=by_name.keys() - lost_nodes - taken_nodes,
        pilot_of=pilot_of,
        pending_jobs=pending_jobs,
        shown_pilots=shown_pilots,
        has_startable_jobs=any(not why_it_waits(job, snapshot.taken_at_s) for job in pending_jobs),
    )


def _in_the_way(census: NodeCensus, ours: Mapping[str, PilotView]) -> Mapping[str, PilotView]:
    in_the_way: dict[str, PilotView] = {}
    for name, pilot in ours.items():
        comes_last = census.snapshot.pilots_come_last and name in census.free
        if name in census.unoccupied and not comes_last:
            in_the_way[name] = pilot
    return in_the_way


def _of_others(census: NodeCensus, pilot_ids: AbstractSet[str]) -> AbstractSet[str]:
    names = set[str]()
    for name, pilot_id in census.pilot_of.items():
        if pilot_id not in pilot_ids:
            names.add(name)
    return (names & census.unoccupied) - census.free


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
