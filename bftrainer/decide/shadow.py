"""The job at the head of the queue has no plan yet → who may pass it meanwhile.

Takes what the job asks for, the nodes it may have now and when running jobs end by their
limits; keeps its ``Shadow``; called by ``feasible``. This is what backfill will do when it
comes round: reserve the earliest moment at which enough nodes are free, and let a later job
start only if it is over by then or leaves enough of them (EASY: D. Lifka, "The ANL/IBM SP
scheduling system", JSSPP 1995; shadow time and extra nodes as in A. Mu'alem and
D. Feitelson, IEEE TPDS 12(6), 2001). Which nodes will be reserved is the scheduler's
choice, so they are only counted, in favour of the later job; and only for the first
blocked job, because when the next one starts depends on that choice. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bftrainer.decide.matching import Demand
from bftrainer.decide.nodesets import NodeSet, NodeSets
from bftrainer.decide.requests import Request
from bftrainer.decide.waiting import slot_begin_s
from bftrainer.poll.snapshot import Job, JobState, NodeState, Snapshot

# A plan that has not come within so many cycles will not come: the job is beyond the depth
# of backfill, or its QOS makes no reservation.
PLANNED_WITHIN_CYCLES = 2.0
EXACT_S = 1.0  # to which ends and plans are known


@dataclass(slots=True, kw_only=True)
class Shadow:
    """When a blocked job starts at the latest, and what it leaves to others then."""

    start_s: float  # or the begin of its slot
    among: NodeSet  # nodes that are what it asks for
    spare: int  # of those free then, so many more than it needs


@dataclass(slots=True, kw_only=True)
class Shadows:
    """The shadow of the head of the queue, and what is needed to tell it."""

    now_s: float
    until_s: float  # beyond this nothing is planned
    ends: Sequence[tuple[float, NodeSet]]  # of running jobs by their limits
    clearing: NodeSet  # nodes whose job has ended, free in a moment
    youngest_s: float  # who was submitted sooner has a plan, or gets none
    slot_s: float = 0.0  # of backfill's plan; 0: it has none
    started: list[tuple[float, Demand]] = field(
        default_factory=list
    )  # by this pass, and until when
    has_head: bool = False  # the first blocked job was met
    shadow: Shadow | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, sets: NodeSets, now_s: float, cycle_s: float) -> Shadows:
        """Look at a complete snapshot."""
        window_s = snapshot.plan_window_s
        began_s = None if snapshot.cycle is None else snapshot.cycle.began_s
        return cls(
            now_s=now_s,
            until_s=float("inf") if window_s is None else now_s + window_s,
            ends=_ends(snapshot.jobs or (), sets, now_s),
            clearing=sets.named(n.name for n in sets.nodes if n.state is NodeState.COMPLETING),
            youngest_s=max(began_s or 0.0, now_s - PLANNED_WITHIN_CYCLES * cycle_s),
            slot_s=snapshot.plan_resolution_s,
        )

    def keeps(self, start_s: float, nodes: NodeSet) -> bool:
        """Whether a plan can be kept: nobody has started since that has its nodes for longer.

        What starts at once, a job of srun on free nodes, asks nobody's plan. The next cycle
        makes another one, and who would not have fitted this one may fit that.
        """
        return not any(
            end_s > start_s + EXACT_S and (used & nodes) != 0 for end_s, used in self.ends
        )

    def block(self, job: Job, request: Request, unused: NodeSet, *, is_void: bool) -> None:
        """Note a job that cannot start, though it waits for nothing but nodes.

        Nobody is held to it where it has a plan, will get none, or where we cannot say what
        it waits for: a choice of nodes, a doubt, a part of a node.

        Args:
            job: the next in the queue's order.
            request: what it asks for.
            unused: nodes that no job before it takes.
            is_void: it has a plan that cannot be kept.
        """
        if self.has_head:
            return
        self.has_head = True
        is_clear = len(request.ways) == 1 and len(request.ways[0]) == 1
        if not is_clear or request.doubt or request.shared is not None:
            return
        is_planned = job.start_s is not None
        if not is_void and (is_planned or (job.submit_s or 0.0) < self.youngest_s):
            return
        wanted = request.ways[0][0]
        if (unused & wanted.among).bit_count() >= wanted.count:
            return  # it waits for something else
        n_free = ((unused | self.clearing) & wanted.among).bit_count()
        for end_s, count in [(self.now_s, 0), *sorted(self._freed(wanted.among))]:
            n_free += count
            if n_free >= wanted.count:
                if end_s < self.until_s:
                    spare = n_free - wanted.count
                    begin_s = slot_begin_s(end_s, self.slot_s)
                    self.shadow = Shadow(start_s=begin_s, among=wanted.among, spare=spare)
                return

    def leave_room(self, way: Sequence[Demand], limit_s: float | None, unused: NodeSet) -> bool:
        """Whether a job that starts now delays nobody; ``unused`` as for ``block``."""
        shadow = self.shadow
        return (
            shadow is None
            or not self._is_long(limit_s, shadow)
            or _of_spare(shadow, way, unused) <= shadow.spare
        )

    def start(self, way: Sequence[Demand], limit_s: float | None, unused: NodeSet) -> None:
        """Note a job that starts; ``unused`` before it does."""
        if self.shadow is not None and self._is_long(limit_s, self.shadow):
            self.shadow.spare -= _of_spare(self.shadow, way, unused)
        end_s = float("inf") if limit_s is None else self.now_s + limit_s
        self.started += [(end_s, demand) for demand in way]

    def _freed(self, among: NodeSet) -> Iterable[tuple[float, int]]:
        """When how many of these nodes become free."""
        for end_s, nodes in self.ends:
            yield end_s, (nodes & among).bit_count()
        for end_s, demand in self.started:
            # Which it has is not known: as many as it may have.
            yield end_s, min(demand.count, (demand.among & among).bit_count())

    def _is_long(self, limit_s: float | None, shadow: Shadow) -> bool:
        """Whether it is not over by then; one whose limit nobody knows fits every gap."""
        return limit_s is not None and self.now_s + limit_s > shadow.start_s


def _of_spare(shadow: Shadow, way: Sequence[Demand], unused: NodeSet) -> int:
    """How many of the nodes in question it takes at least."""
    return sum(
        max(0, demand.count - (unused & demand.among & ~shadow.among).bit_count()) for demand in way
    )


def _ends(jobs: Iterable[Job], sets: NodeSets, now_s: float) -> list[tuple[float, NodeSet]]:
    """When running ordinary jobs are over at the latest; one that overstays may end at once."""
    return [
        (max(now_s, job.start_s + job.time_limit_s), sets.named(job.nodes))
        for job in jobs
        if job.is_ordinary
        and job.state is JobState.RUNNING
        and job.start_s is not None
        and job.time_limit_s is not None
    ]
