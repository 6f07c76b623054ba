"""The jobs on the nodes of a simulated machine, and the nodes that Slurm gives the next one.

``Machine`` asks the one that fits its settings. A job that has to preempt gets the free nodes
first; of shared nodes the main scheduler lets preemptable jobs go one by one until the job fits,
and then only those of its nodes (_run_now in job_test.c of Slurm 22.05).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bftrainer.lab.site.shared import Need, Remainder, ResourceLayout, TakenParts
from bftrainer.lab.site.shared_timeline import SharedTimeline
from bftrainer.lab.site.sharing import NodeSet, Share
from bftrainer.lab.site.timeline import EarliestStart, Timeline, lowest, neighbours, positions

if TYPE_CHECKING:
    from bftrainer.lab.site.machine import Preemptable, SchedulerSettings, SiteJob


class JobRoom(NamedTuple):
    """Nodes for a job, and the preemptable jobs that have to go before it starts."""

    nodes: NodeSet
    victims: tuple[Preemptable, ...]


class SiteTimeline(Protocol):
    """Backfill's view of the future; ``need`` is None where nodes are whole."""

    now_s: float

    def advance(self, now_s: float) -> None:
        """Let time pass in which no job started or ended."""

    def earliest(
        self, count: int, limit_s: float, among: NodeSet, need: Need | None = None
    ) -> EarliestStart | None:
        """Return the earliest start of a job on some of these nodes; None: there is none."""

    def choose(self, start: EarliestStart, count: int, need: Need | None = None) -> NodeSet:
        """Return the nodes of a planned start."""

    def close(self, start_s: float, end_s: float, nodes: NodeSet) -> None:
        """Plan a job, in slots."""

    def start(self, end_s: float, nodes: NodeSet, need: Need | None = None) -> None:
        """Let a job run from now until its limit."""

    def cut(self, begin_s: float, end_s: float, nodes: NodeSet) -> None:
        """Close nodes from one moment to another."""

    def open_now(self, limit_s: float) -> NodeSet:
        """Return the nodes on which nobody is planned for the whole limit."""


class NodeOccupancy(Protocol):
    """Ordinary and preemptable jobs on nodes."""

    busy: NodeSet  # with ordinary jobs
    held: NodeSet  # with preemptable ones

    def need(self, share: Share | None, partition: str) -> Need | None:
        """Return what a job needs of each node; None: all of it."""

    def take(self, job: SiteJob) -> None:
        """Let a job run on ``job.nodes``; whoever was in its way is gone."""

    def give(self, job: SiteJob) -> None:
        """Let it end."""

    def room_for(
        self, job: SiteJob, among: NodeSet, preemptable: Iterable[Preemptable]
    ) -> JobRoom | None:
        """Return where Slurm starts a job; None: there is no room."""

    def place(self, mine: Preemptable, among: NodeSet) -> NodeSet:
        """Return the node on which a preemptable job starts; 0: there is no room."""

    def hold(self, mine: Preemptable) -> None:
        """Let it run at ``mine.at``."""

    def release(self, mine: Preemptable) -> None:
        """Let it go."""

    def left_on(self, nodes: NodeSet) -> Mapping[int, Share]:
        """Return what is left of nodes in use, of those of which something can be left."""

    def gpus_left(self, node: int) -> Mapping[str, int]:
        """Return how many GPUs of each type no job has, preemptable ones included."""

    def timeline_later(
        self, running: Iterable[SiteJob], slot_s: float
    ) -> Callable[[float], SiteTimeline]:
        """Return a function: what backfill would see at a later time, by what runs now."""


class WholeNodes:
    """A job has its nodes alone."""

    def __init__(self, n_nodes: int) -> None:
        self._every: NodeSet = (1 << n_nodes) - 1
        self.busy: NodeSet = 0
        self.held: NodeSet = 0

    def need(self, _share: Share | None, _partition: str) -> Need | None:
        """Return that it needs all of a node."""
        return None

    def take(self, job: SiteJob) -> None:
        """Let a job run on ``job.nodes``."""
        self.busy |= job.nodes

    def give(self, job: SiteJob) -> None:
        """Let it end."""
        self.busy ^= job.nodes

    def room_for(
        self, job: SiteJob, among: NodeSet, preemptable: Iterable[Preemptable]
    ) -> JobRoom | None:
        """Return where Slurm starts a job, free nodes first; None: too few."""
        free = among & ~self.busy & ~self.held
        missing = job.spec.n_nodes - free.bit_count()
        if missing <= 0:
            return JobRoom(neighbours(free, job.spec.n_nodes), ())
        victims = among & self.held
        if victims.bit_count() < missing:
            return None
        nodes = free | lowest(victims, missing)
        return JobRoom(nodes, tuple(mine for mine in preemptable if mine.at & nodes))

    def place(self, _mine: Preemptable, among: NodeSet) -> NodeSet:
        """Return the lowest free node; 0: there is none."""
        free = among & ~self.busy & ~self.held
        return free & -free

    def hold(self, mine: Preemptable) -> None:
        """Let it run at ``mine.at``."""
        self.held |= mine.at

    def release(self, mine: Preemptable) -> None:
        """Let it go."""
        self.held &= ~mine.at

    def left_on(self, _nodes: NodeSet) -> Mapping[int, Share]:
        """Return nothing: a job has all of its nodes."""
        return {}

    def gpus_left(self, _node: int) -> Mapping[str, int]:
        """Return nothing: GPUs are not told apart."""
        return {}

    def timeline_later(
        self, running: Iterable[SiteJob], slot_s: float
    ) -> Callable[[float], SiteTimeline]:
        """Return a function: what backfill would see at a later time, by what runs now."""
        ends = [(job.ends_by_s, job.nodes) for job in running]
        free = self._every & ~self.busy
        return lambda now_s: Timeline(now_s, free, ends, slot_s)


class SharedNodes:
    """A job has its share of its nodes."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._layout = ResourceLayout(
            settings.capacities, settings.partitions, settings.is_least_loaded_first
        )
        self._beside_jobs = Remainder(self._layout.capacity.copy())
        self._left = self._beside_jobs.copy()  # beside jobs and preemptable ones
        self._taken: dict[int, TakenParts] = {}  # by job
        self._lent: dict[str, TakenParts] = {}  # by preemptable job
        self._n_jobs: dict[int, int] = {}  # ordinary ones, by node
        self.busy: NodeSet = 0
        self.held: NodeSet = 0

    def need(self, share: Share | None, partition: str) -> Need | None:
        """Return what a job needs of each node."""
        return self._layout.need(share, partition)

    def _need_of(self, job: SiteJob) -> Need:
        return self._layout.need(job.spec.share, job.spec.partition)

    def take(self, job: SiteJob) -> None:
        """Let a job run on ``job.nodes``."""
        parts = self._layout.take(self._need_of(job), job.nodes, self._left)
        self._taken[job.spec.number] = parts
        self._beside_jobs.take(parts)
        self._left.take(parts)
        self.busy |= job.nodes
        for node in parts.at.tolist():
            self._n_jobs[node] = self._n_jobs.get(node, 0) + 1

    def give(self, job: SiteJob) -> None:
        """Let it end."""
        parts = self._taken.pop(job.spec.number)
        self._beside_jobs.give(parts)
        self._left.give(parts)
        for node in parts.at.tolist():
            self._n_jobs[node] -= 1
            if not self._n_jobs[node]:
                self.busy &= ~(1 << node)

    def room_for(
        self, job: SiteJob, among: NodeSet, preemptable: Iterable[Preemptable]
    ) -> JobRoom | None:
        """Return where Slurm starts a job; None: there is no room."""
        need, count = self._need_of(job), job.spec.n_nodes
        free = self._left.fits(need) & among
        if free.bit_count() >= count:
            return JobRoom(self._layout.choose(need, free, count, self._left), ())
        could_fit = self._beside_jobs.fits(need) & among
        if could_fit.bit_count() < count:
            return None
        candidates = [mine for mine in preemptable if mine.name in self._lent and mine.at & among]
        first = self._without(candidates, need, count, among)
        if first is None:
            return None
        in_the_way = [mine for mine in reversed(first.victims) if mine.at & first.nodes]
        return self._without(in_the_way, need, count, among) or first

    def _without(
        self, candidates: Sequence[Preemptable], need: Need, count: int, among: NodeSet
    ) -> JobRoom | None:
        """Let preemptable jobs go, one by one, until there is room."""
        remainder = self._left.copy()
        for n, mine in enumerate(candidates, 1):
            remainder.give(self._lent[mine.name])
            fitting = remainder.fits(need) & among
            if fitting.bit_count() >= count:
                nodes = self._layout.choose(need, fitting, count, remainder)
                victims = tuple(candidate for candidate in candidates[:n] if candidate.at & nodes)
                return JobRoom(nodes, victims)
        return None

    def place(self, mine: Preemptable, among: NodeSet) -> NodeSet:
        """Return the node on which a preemptable job starts; 0: there is no room."""
        need = self._layout.need(mine.share, "")
        fitting = self._left.fits(need) & among
        if not fitting:
            return 0
        return self._layout.choose(need, fitting, 1, self._left)

    def hold(self, mine: Preemptable) -> None:
        """Let it run at ``mine.at``."""
        parts = self._layout.take(self._layout.need(mine.share, ""), mine.at, self._left)
        self._lent[mine.name] = parts
        self._left.take(parts)
        self.held |= mine.at

    def release(self, mine: Preemptable) -> None:
        """Let it go."""
        parts = self._lent.pop(mine.name, None)
        if parts is None:
            return
        self._left.give(parts)
        self.held = 0
        for lent_parts in self._lent.values():
            self.held |= lent_parts.nodes

    def left_on(self, nodes: NodeSet) -> Mapping[int, Share]:
        """Return what is left of those that nobody has alone."""
        shares = {}
        for k in positions(nodes):
            share = self._layout.left(self._left, k)
            if share is not None:
                shares[k] = share
        return shares

    def gpus_left(self, node: int) -> Mapping[str, int]:
        """Return how many GPUs of each type no job has, preemptable ones included."""
        return self._layout.gpus_left(self._left, node)

    def timeline_later(
        self, running: Iterable[SiteJob], slot_s: float
    ) -> Callable[[float], SiteTimeline]:
        """Return a function: what backfill would see at a later time, by what runs now."""
        ends = [(job.ends_by_s, self._taken[job.spec.number]) for job in running]
        remainder, layout = self._beside_jobs.copy(), self._layout
        return lambda now_s: SharedTimeline(now_s, remainder, ends, slot_s, layout)
