"""The census: whose each node of a snapshot is. Pure.

Each stage of a decision reads this value instead of asking the snapshot again. Each part of it is
counted when it is first asked for, and once: several decisions use one snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property, wraps
from typing import Final, Protocol, TypeVar

from bftrainer.model.cluster import Job, JobState, Node, NodeState, Snapshot
from bftrainer.model.node_sets import NodeSets

FREE_STATES: Final = (NodeState.IDLE, NodeState.PLANNED)
LOST_STATES: Final = (  # not usable
    NodeState.DRAINED,
    NodeState.DOWN,
    NodeState.RESERVED,
    NodeState.POWER_SAVING,
)
Argument = TypeVar("Argument")
Result = TypeVar("Result")


class Holder(Protocol):
    """One of our pilots, as the census needs to know it (``PilotView``)."""

    @property
    def pilot_id(self) -> str:
        """As the batch system shows it."""

    @property
    def node(self) -> str:
        """The name of its node."""

    @property
    def is_leaving(self) -> bool:
        """Whether it was released."""


AnyHolder = TypeVar("AnyHolder", bound=Holder)


def once_per_look(work: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """Cache the result of a pure function for its last argument; callers must not modify it."""
    last: tuple[Argument, Result] | None = None

    @wraps(work)
    def cached(argument: Argument) -> Result:
        nonlocal last
        kept = last
        if kept is None or kept[0] is not argument:
            last = kept = argument, work(argument)
        return kept[1]

    return cached


class NodeCensus:
    """Whose each node is; sets are of names."""

    def __init__(self, snapshot: Snapshot) -> None:
        """Begin with a snapshot; nodes and jobs that are unread count as none."""
        self._snapshot = snapshot

    # ---- nodes by what the batch system shows --------------------------------------------

    @cached_property
    def sets(self) -> NodeSets:
        """The nodes as bits."""
        return _sets_of(self._snapshot.nodes or ())

    @cached_property
    def by_name(self) -> Mapping[str, Node]:
        """Each node."""
        return _by_name(self._snapshot.nodes or ())

    @cached_property
    def free(self) -> frozenset[str]:
        """Nodes on which nothing runs and a job may start."""
        return self._in_states(*FREE_STATES)

    @cached_property
    def lost(self) -> frozenset[str]:
        """Nodes on which no job of anybody may start."""
        return self._in_states(*LOST_STATES)

    @cached_property
    def completing(self) -> frozenset[str]:
        """Nodes whose last job still ends."""
        return self._in_states(NodeState.COMPLETING)

    @cached_property
    def taken(self) -> frozenset[str]:
        """Nodes occupied by ordinary jobs.

        Nodes and jobs are not read at the same instant: a node shown free counts as free.
        """
        pending = JobState.PENDING
        jobs = self._snapshot.jobs or ()
        running = [job for job in jobs if job.state is not pending and job.pilot_id is None]
        return frozenset([node for job in running for node in job.nodes]) - self.free

    @cached_property
    def pilot_of(self) -> Mapping[str, str]:
        """The pilots that have nodes, ours and those of other daemons, by node."""
        pending = JobState.PENDING
        started = [job for job in self._snapshot.jobs or () if job.state is not pending]
        pilots = [(job.pilot_id, job.nodes) for job in started if job.pilot_id is not None]
        return {node: pilot_id for pilot_id, nodes in pilots for node in nodes}

    # ---- nodes by who could have them ------------------------------------------------------

    def not_leaving(self, pilots: Iterable[AnyHolder]) -> dict[str, AnyHolder]:
        """Return those of our pilots that stay, by node."""
        return {pilot.node: pilot for pilot in pilots if not pilot.is_leaving}

    def in_the_way(self, pilots: Iterable[AnyHolder]) -> dict[str, AnyHolder]:
        """Return those of our pilots whose node a job could have, by node.

        Where pilots come last, a pending pilot delays no job. Nor does one that has started since
        the snapshot: the cycle that started it has served the jobs before it.
        """
        not_to_have = self.lost | self.taken
        if self._snapshot.pilots_come_last:
            not_to_have |= self.free
        to_have = self.by_name.keys() - not_to_have
        staying = self.not_leaving(pilots)
        return {node: pilot for node, pilot in staying.items() if node in to_have}

    def of_others(self, pilots: Iterable[Holder]) -> AbstractSet[str]:
        """Return the nodes with a pilot of another daemon: it gives them back for the same jobs.

        They come after ours, so that two daemons do not wait for each other.
        """
        ours = {pilot.pilot_id: pilot.node for pilot in pilots}
        others = {node for node, pilot_id in self.pilot_of.items() if pilot_id not in ours}
        if not others:
            return others
        shown = others & self.by_name.keys()
        return shown - self.lost - self.free - self.taken - set(ours.values())

    def coming_back(self, pilots: Iterable[Holder], held_off: Iterable[str]) -> AbstractSet[str]:
        """Return the nodes given back that nothing occupies yet, whatever state they show.

        Args:
            pilots: ours, not ended.
            held_off: nodes that are left to jobs for now.
        """
        leaving = {pilot.node for pilot in pilots if pilot.is_leaving}
        given_back = leaving.union(held_off)
        if not given_back:
            return given_back
        shown = given_back & self.by_name.keys()
        return shown - self.lost - self.taken - self.not_leaving(pilots).keys()

    # ---- jobs that wait --------------------------------------------------------------------

    @cached_property
    def pending_jobs(self) -> Sequence[Job]:
        """The ordinary jobs that have not started, in snapshot order."""
        pending = JobState.PENDING  # looked up once: a queue may have 10,000 jobs
        jobs = self._snapshot.jobs or ()
        return [job for job in jobs if job.state is pending and job.pilot_id is None]

    @cached_property
    def has_startable_jobs(self) -> bool:
        """Whether some pending job might start if it had nodes."""
        taken_at_s = self._snapshot.taken_at_s
        return any(not why_it_waits(job, taken_at_s) for job in self.pending_jobs)

    def _in_states(self, *states: NodeState) -> frozenset[str]:
        by_state = _by_state(self._snapshot.nodes or ())
        return frozenset[str]().union(*[by_state.get(state, ()) for state in states])


@once_per_look
def census_of(snapshot: Snapshot) -> NodeCensus:
    """Return the census of a snapshot, the same one as long as no other is asked for."""
    return NodeCensus(snapshot)


def why_it_waits(job: Job, now_s: float) -> str:
    """Say why a job cannot start now whatever is free; "": no reason known."""
    if not job.is_entitled:
        what = f" ({job.waits_for})" if job.waits_for else ""
        return f"The batch system does not start it: {job.reason or 'it does not say why'}{what}."
    if job.begin_s is not None and job.begin_s > now_s:
        return "Its begin time has not come."
    return ""


# By the tuple of nodes and not by the snapshot: it stays the same where only jobs have changed.
@once_per_look
def _by_name(nodes: tuple[Node, ...]) -> Mapping[str, Node]:
    return {node.name: node for node in nodes}


@once_per_look
def _by_state(nodes: tuple[Node, ...]) -> Mapping[NodeState, AbstractSet[str]]:
    names: dict[NodeState, set[str]] = {}
    for node in nodes:
        names.setdefault(node.state, set()).add(node.name)
    return names


@once_per_look
def _sets_of(nodes: tuple[Node, ...]) -> NodeSets:
    return NodeSets.of(nodes)
