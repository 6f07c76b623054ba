"""The local scheduler: first come, first served with EASY backfill. Pure.

Ordinary jobs have whole nodes. Pilots have whole nodes, too, or GPUs of one, which they then share.

Called by ``cluster`` for every pass and by ``workload`` to simulate the same jobs without pilots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingJob:
    """A pending job; ``claim``: assigned nodes that pilots still have to leave, a pilot's its node.

    Without ``may_preempt`` it waits where it would preempt, and all behind it.
    """

    job_id: str
    n_nodes: int = 1
    limit_s: float
    claim: tuple[str, ...] = ()
    may_preempt: bool = True
    gpus: int = 0  # of a pilot: it needs no more of its node; 0: all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAllocation:
    """A job on its nodes, running or ending."""

    job_id: str
    nodes: tuple[str, ...]
    start_s: float
    ends_by_s: float  # its time limit
    is_pilot: bool = False
    is_ending: bool = False
    gpus: int = 0  # of a pilot that has no more of its node; 0: all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadReservation:
    """Latest start time and nodes of the job at the head of the queue."""

    job_id: str
    start_s: float
    nodes: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class SchedulerPass:
    """The decisions of one pass."""

    starts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    claims: dict[str, tuple[str, ...]] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    plan: HeadReservation | None = None


def run_pass(
    *,
    now_s: float,
    nodes: Sequence[str],
    held: Iterable[LocalAllocation],
    waiting: Sequence[PendingJob],
    pilots: Sequence[PendingJob],
    is_full: bool,
    gpus_per_node: int = 0,
) -> SchedulerPass:
    """Serve the queue in order; a full pass also backfills behind a blocked job.

    For ordinary jobs a node with a pilot counts as free. They take idle nodes first. A job
    that needs nodes with pilots claims them, the pilots are preempted, and the first pass
    after they have ended starts the job.
    """
    board = _Board(now_s=now_s, nodes=nodes, held=held)
    claiming = [job for job in waiting if job.claim and set(job.claim) <= set(nodes)]
    for job in claiming:  # they start, or go on waiting
        board.take(job, job.claim)
    head: PendingJob | None = None
    start_s = 0.0
    n_extra = 0
    for job in waiting:
        # While nodes are down, a job that needs more than are left must not block others.
        if job in claiming or job.n_nodes > len(nodes):
            continue
        n_available = len(board.available())
        if head is None:
            if job.n_nodes <= n_available:
                if not job.may_preempt and board.would_preempt(job.n_nodes):
                    return board.result
                board.place(job)
                continue
            head = job
            start_s = board.earliest_start_s(job.n_nodes)
            n_extra = len(board.free_by(start_s)) - job.n_nodes
            if not is_full:
                break
            continue
        is_short = now_s + job.limit_s <= start_s
        if job.n_nodes <= n_available and (is_short or job.n_nodes <= n_extra):
            board.place(job)
            if not is_short:
                n_extra -= job.n_nodes
    if head is not None:
        # The nodes that become free last, so that others can use the earlier ones until then.
        planned_nodes = board.free_by(start_s)[-head.n_nodes :]
        board.result.plan = HeadReservation(
            job_id=head.job_id, start_s=start_s, nodes=tuple(planned_nodes)
        )
    if head is None or is_full:
        board.serve_pilots(pilots, gpus_per_node)
    return board.result


class _Board:
    """The use of the nodes during a pass."""

    def __init__(
        self, *, now_s: float, nodes: Sequence[str], held: Iterable[LocalAllocation]
    ) -> None:
        self.now_s = now_s
        self.nodes = tuple(nodes)
        self.result = SchedulerPass()
        self.taken_until_s: dict[str, float] = {}  # by ordinary jobs, claims included
        self.pilots: dict[str, list[LocalAllocation]] = {}  # several have GPUs each
        for job in held:
            for node in job.nodes:
                if job.is_pilot:
                    self.pilots.setdefault(node, []).append(job)
                else:
                    self.taken_until_s[node] = max(now_s, job.ends_by_s)

    def available(self) -> list[str]:
        """Nodes an ordinary job can have, in the order in which it should take them."""
        return sorted((n for n in self.nodes if n not in self.taken_until_s), key=self._cost)

    def would_preempt(self, n_nodes: int) -> bool:
        """Return whether the cheapest ``n_nodes`` include one whose pilot is not leaving."""
        return any(self._cost(node)[0] == 2 for node in self.available()[:n_nodes])

    def _cost(self, node: str) -> tuple[int, float]:
        pilots = self.pilots.get(node)
        if not pilots:
            return (0, 0.0)
        # Nodes with ending pilots cost nothing; of other pilots the youngest loses least.
        staying = [pilot for pilot in pilots if not pilot.is_ending]
        if not staying:
            return (1, 0.0)
        return (2, -sum(pilot.start_s for pilot in staying) / len(staying))

    def place(self, job: PendingJob) -> None:
        """Give the job the cheapest available nodes."""
        self.take(job, tuple(self.available()[: job.n_nodes]))

    def take(self, job: PendingJob, nodes: tuple[str, ...]) -> None:
        """Let a job start, or claim nodes whose pilots are preempted."""
        in_the_way: list[LocalAllocation] = []
        for node in nodes:
            in_the_way += self.pilots.get(node, ())
        for pilot in in_the_way:
            if not pilot.is_ending:
                self.result.preempted.append(pilot.job_id)
        if in_the_way:
            self.result.claims[job.job_id] = nodes
        else:
            self.result.starts[job.job_id] = nodes
        for node in nodes:
            self.taken_until_s[node] = self.now_s + job.limit_s

    def earliest_start_s(self, n_nodes: int) -> float:
        """Return the time at which ``n_nodes`` are free if every job uses its whole time limit."""
        return sorted(map(self._free_at_s, self.nodes))[n_nodes - 1]

    def free_by(self, at_s: float) -> list[str]:
        """Nodes free at ``at_s`` by the time limits, those free first at the front."""
        nodes = (node for node in self.nodes if self._free_at_s(node) <= at_s)
        return sorted(nodes, key=self._free_at_s)

    def _free_at_s(self, node: str) -> float:
        return self.taken_until_s.get(node, self.now_s)

    def serve_pilots(self, pilots: Sequence[PendingJob], gpus_per_node: int) -> None:
        """Start pilots on the remaining nodes if their limit ends before the plan begins."""
        plan = self.result.plan
        for pilot in pilots:
            [node], ends_s = pilot.claim, self.now_s + pilot.limit_s
            if node not in self.nodes or node in self.taken_until_s:
                continue
            if not self._has_room(node, pilot.gpus, gpus_per_node):
                continue
            if plan is not None and node in plan.nodes and ends_s > plan.start_s:
                continue
            self.result.starts[pilot.job_id] = (node,)
            started = LocalAllocation(
                job_id=pilot.job_id,
                nodes=(node,),
                start_s=self.now_s,
                ends_by_s=ends_s,
                is_pilot=True,
                gpus=pilot.gpus,
            )
            self.pilots.setdefault(node, []).append(started)

    def _has_room(self, node: str, gpus: int, gpus_per_node: int) -> bool:
        """Return whether a pilot with so many GPUs, or the whole node, fits beside those there."""
        gpus_taken = [pilot.gpus for pilot in self.pilots.get(node, ())]
        if not gpus_taken:
            return gpus <= gpus_per_node or not gpus
        return bool(gpus) and all(gpus_taken) and sum(gpus_taken) + gpus <= gpus_per_node
