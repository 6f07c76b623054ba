"""Pending jobs that could start on the free nodes and some of ours, by node. Pure.

A room is what is left of one node out of a set: a node in use, or one on which a job of this
decision is about to start. A search for a known share resumes where the last one ended, because
rooms only get smaller.

Jobs are judged in scheduler order, each against what the earlier ones leave, so all that can
start can start together. A job that cannot start is planned as the scheduler would
(``queue.backfill``); later jobs may use its nodes only if they end before. Returns which jobs
can start with which demands, and why the others cannot. Called by ``giveback``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from bftrainer.decide.queue.backfill import BackfillPlan
from bftrainer.decide.queue.matching import Matching
from bftrainer.decide.queue.models import QueueModel
from bftrainer.model.census import whole, why_it_waits
from bftrainer.model.cluster import Job, NodeLeft, NodeState
from bftrainer.model.node_sets import NodeSet, NodeSets
from bftrainer.model.queue import JobNeeds, NodeDemand

TOO_FEW: Final = "Too few nodes for it are free or ours."
# A job that can start, and its demand, including nodes beyond its minimum.
Placed = tuple[Job, NodeDemand]


class NodeRoom(NamedTuple):
    """What is left of a node that jobs use in part."""

    among: NodeSet  # it is one of these
    left: NodeLeft


class Rooms:
    """All rooms."""

    def __init__(self, sets: NodeSets, usable: NodeSet) -> None:
        """Begin with partly used nodes; nodes of pilots count as whole."""
        self._sets = sets
        self._rooms: list[NodeRoom | None] = []  # None: replaced by a smaller one
        for node in sets.nodes:
            if node.left is not None and node.state is NodeState.ALLOCATED:
                bit = sets.bit_of[node.name]
                if not bit & usable:
                    self._rooms.append(NodeRoom(bit, node.left))
        self._searched: dict[tuple[NodeSet, NodeLeft], int] = {}

    def find(self, demand: NodeDemand, share: NodeLeft) -> list[int]:
        """Return the positions of up to ``demand.count`` rooms for a demand."""
        key, positions = (demand.among, share), list[int]()
        for position in range(self._searched.get(key, 0), len(self._rooms)):
            if len(positions) == demand.count:
                break
            room = self._rooms[position]
            if room is not None and not room.among & ~demand.among and room.left.covers(share):
                positions.append(position)
            elif not positions:
                self._searched[key] = position + 1
        return positions

    def use(self, position: int, share: NodeLeft) -> None:
        """Take part of a room."""
        room = self._rooms[position]
        if room is not None:
            self._rooms[position] = None
            self._add(room.among, room.left.without(share))

    def begin(self, demand: NodeDemand, share: NodeLeft) -> None:
        """Add as rooms what a job leaves of the whole nodes it starts on."""
        parts = [whole(node) for node, members in self._sets.kinds if members & demand.among]
        smallest = NodeLeft(
            cpus=min([part.cores for part in parts]),
            memory_mb=min([part.memory_mb for part in parts]),
            gpus=min([part.gpus for part in parts]),
        )
        for _ in range(demand.count):
            self._add(demand.among, smallest.without(share))

    def _add(self, among: NodeSet, left: NodeLeft) -> None:
        if left.cpus > 0:
            self._rooms.append(NodeRoom(among, left))


class Feasibility:
    """The jobs of a queue that can start, with their nodes, and why the others cannot."""

    def __init__(
        self,
        queue: QueueModel,
        plan: BackfillPlan,
        *,
        usable: NodeSet,
        free: NodeSet,
        refusals: Mapping[str, str],
    ) -> None:
        """Begin a pass over the queue.

        Args:
            queue: pending ordinary jobs.
            plan: of the same queue, still empty.
            usable: nodes that are free, coming back, or ours.
            free: the subset that needs no release.
            refusals: why nothing is released for some jobs, by ``Job.counts_as``.
        """
        self.starts: list[Job] = []  # in queue order
        self.placed: list[Placed] = []  # likewise
        self.refused: dict[str, str] = {}  # job -> why it cannot start, one sentence
        self.plan = plan  # of the refused jobs
        self._queue, self._requests, self._refusals = queue, queue.requests, refusals
        self._rooms = Rooms(queue.sets, usable)
        self._matching = Matching(usable)  # of startable jobs to free nodes and ours
        self._n_unused = usable.bit_count()  # of ``usable``
        self._now_free = Matching(free)  # the part of it that free nodes can meet

    def of_all(self) -> Feasibility:
        """Judge every job."""
        for job in self._queue.jobs:
            self._judge(job)
        return self

    def _judge(self, job: Job) -> None:
        why, request = why_it_waits(job, self._queue.now_s), None
        if not (why or job.can_share) and job.n_nodes > self._n_unused and self.plan.is_full:
            why = TOO_FEW  # a shortcut: most jobs of a full machine
        if not why:
            request = self._requests.of(job)
            why = request.why_not or self._refusals.get(job.counts_as, "")
            if why:
                request = None
            else:
                is_inside = bool(job.reservations)
                off = self.plan.kept_off(request.limit_s, is_in_reservation=is_inside)
                if not self._start(job, request, off):
                    why = TOO_FEW
        if why:
            self.refused[job.job_id] = why
            self.plan.wait(job, request)

    def _start(self, job: Job, request: JobNeeds, off: NodeSet) -> bool:
        """Find nodes for a job, none of which is ``off``; False: too few.

        Of its preferred ways, and then of the others, that comes first which uses most free nodes.
        """
        ways = [_kept_off(way, off) for way in request.ways]
        if len(ways) > 1:
            n_first = request.n_preferred
            ways = sorted(ways[:n_first], key=self._lacks) + sorted(ways[n_first:], key=self._lacks)
        before = self._matching.unused
        is_found = any(self._start_so(job, way) for way in ways)
        # Earlier jobs may have moved to some of these.
        if used_nodes := before & ~self._matching.unused:
            self.plan.start(request.limit_s, used_nodes)
            self._n_unused -= used_nodes.bit_count()
        return is_found

    def _lacks(self, way: list[NodeDemand]) -> int:
        """Count the nodes of ours that a way would need released."""
        trial = Matching(self._now_free.unused, dict(self._now_free.has))
        n_lacking = 0
        for demand in way:
            n_lacking += demand.count - trial.add_up_to(demand.among, demand.count)
        return n_lacking

    def _start_so(self, job: Job, way: list[NodeDemand]) -> bool:
        whole, rooms = list[NodeDemand](), dict[int, NodeLeft]()
        for demand in way:
            positions: list[int] = []
            if demand.share is not None:
                positions = [p for p in self._rooms.find(demand, demand.share) if p not in rooms]
                rooms |= dict.fromkeys(positions, demand.share)
            if len(positions) < demand.count:
                whole.append(replace(demand, count=demand.count - len(positions)))
        if not self._matching.try_add(whole):
            return False
        for position, share in rooms.items():
            self._rooms.use(position, share)
        for demand in whole:
            n_more = self._matching.add_up_to(demand.among, demand.n_more)
            self._now_free.add_up_to(demand.among, demand.count + n_more)
            whole_demand = demand
            if n_more:
                whole_demand = replace(demand, count=demand.count + n_more)
            if demand.share is not None:
                self._rooms.begin(whole_demand, demand.share)
            self.placed.append((job, whole_demand))
        self.starts.append(job)
        return True


def _kept_off(way: Iterable[NodeDemand], nodes: NodeSet) -> list[NodeDemand]:
    """Return the demands of a way without these nodes."""
    demands: list[NodeDemand] = []
    for demand in way:
        if demand.among & nodes:
            demands.append(replace(demand, among=demand.among & ~nodes))
        else:
            demands.append(demand)
    return demands
