"""Would the scheduler start this job on the free nodes and some of ours? Asked of the queue.

Takes the pending ordinary jobs in order of priority and what is free or ours, returns a
``Verdict`` for each and the ``Demands`` that must be met; called by ``giveback``. Jobs are
judged in that order against what those before them leave: all that can start now can
start together. A job that cannot holds up later ones as backfill does: on the nodes on
which it is planned they must be over by its planned start; while it has no plan, by the
one it will get (``shadow``). Pure.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bftrainer.decide.matching import Demand, Matching
from bftrainer.decide.nodesets import NodeSet
from bftrainer.decide.requests import Request, Requests
from bftrainer.decide.rooms import Rooms
from bftrainer.decide.shadow import Shadows
from bftrainer.decide.waiting import slot_begin_s
from bftrainer.poll.snapshot import Job


class Answer(enum.StrEnum):
    """Whether a pending job could start now."""

    STARTS_ON_FREE = "starts on free nodes"
    NEEDS = "needs nodes of ours"
    CANNOT = "cannot start"
    IN_DOUBT = "in doubt"  # treated as if it could start


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer for one job."""

    job_id: str
    answer: Answer
    n_ours: int = 0  # nodes it lacks when all before it and it have what is free
    why: str = ""  # a sentence, where it cannot start or there is a doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A demand of a job that can start, at its least and with what it takes on top."""

    job: Job
    demand: Demand


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the queue asks for."""

    verdicts: list[Verdict] = field(default_factory=list)
    placed: list[Placed] = field(default_factory=list)  # in order of priority
    behind: set[str] = field(default_factory=set)  # ids of those only backfill can start


def judge(
    jobs: Sequence[Job],
    requests: Requests,
    free: NodeSet,
    shadows: Shadows,
    had_its_chance: Callable[[Job, NodeSet], bool],
) -> Outcome:
    """Judge every job of the queue.

    Args:
        jobs: pending ordinary jobs, in the order in which the scheduler takes them.
        requests: of these jobs.
        free: those of the site's usable nodes that nobody has to give back.
        shadows: of blocked jobs, none so far.
        had_its_chance: whether the scheduler passed over a job that could have started;
            asked once for each job for which there is room, with the nodes it has to keep
            off because of plans for jobs before it.
    """
    site = requests.site
    walk = _Walk(
        requests=requests,
        matching=Matching(site.usable),
        on_free=Matching(free),
        rooms=Rooms.in_use(site),
        shadows=shadows,
    )
    return walk.through(jobs, had_its_chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Where a job would start."""

    whole: tuple[Demand, ...]  # nodes for itself, or that it opens to others
    rooms: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class _Walk:
    """The state of one pass over the queue."""

    requests: Requests
    matching: Matching  # of all that can start with free nodes and ours
    on_free: Matching  # of as much of that as free nodes can have
    rooms: Rooms
    shadows: Shadows
    out: Outcome = field(default_factory=Outcome)
    barriers: list[tuple[float, NodeSet]] = field(default_factory=list)
    kept_off: dict[tuple[float | None, bool], tuple[int, NodeSet]] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)  # partitions in which a job is blocked

    def through(
        self, jobs: Sequence[Job], had_its_chance: Callable[[Job, NodeSet], bool]
    ) -> Outcome:
        for job in jobs:
            request = self.requests.of(job)
            if request.cannot:
                self._refuse(job, request.cannot)
                continue
            before = self.matching.unused, dict(self.matching.has)
            off = self._kept_off(request.limit_s, is_behind=self._is_behind(job))
            found = self._place(request, off)
            if found is None:
                self._block(job, request, "Too few nodes for it are free or ours.")
            elif had_its_chance(job, off):
                self.matching.unused, self.matching.has = before
                self._block(job, request, "It had its chance, and nothing has changed since.")
            else:
                self._start(job, request, found, before[0])
        return self.out

    def _is_behind(self, job: Job) -> bool:
        """Whether only backfill can start it."""
        return self.closed.issuperset(job.partition.split(","))

    def _place(self, request: Request, off: NodeSet) -> _Found | None:
        """Find room beside ``off``; ``None``: there is none. Of several ways what is free."""
        ways = [
            [Demand(demand.among & ~off, demand.count) for demand in way] for way in request.ways
        ]
        if len(ways) > 1:
            ways.sort(key=self._lacks)
        for way in ways:
            found = self._place_so(way, request)
            if found is not None:
                return found
        return None

    def _lacks(self, way: list[Demand]) -> int:
        """Count the nodes of ours that a way would take on top of what is taken."""
        trial = Matching(self.on_free.unused, dict(self.on_free.has))
        return sum(demand.count - trial.add_up_to(demand) for demand in way)

    def _place_so(self, way: list[Demand], request: Request) -> _Found | None:
        rooms: list[int] = []
        if request.shared is not None:
            rest: list[Demand] = []
            for demand in way:
                has_room = [p for p in self.rooms.find(demand, request.shared) if p not in rooms]
                rooms += has_room
                if len(has_room) < demand.count:
                    rest.append(Demand(demand.among, demand.count - len(has_room)))
            way = rest
        unused = self.matching.unused
        if not self.shadows.leave_room(way, request.limit_s, unused):
            return None
        if not self.matching.try_add(way):
            return None
        if way and request.n_more:
            among, count = way[-1].among, way[-1].count
            count += self.matching.add_up_to(Demand(among, request.n_more))
            way = [*way[:-1], Demand(among, count)]
        return _Found(whole=tuple(way), rooms=tuple(rooms))

    def _block(self, job: Job, request: Request, why: str) -> None:
        """It waits for nodes: the main scheduler takes none after it in its partitions."""
        is_void = self._refuse(job, why)
        self.shadows.block(job, request, self.matching.unused, is_void=is_void)
        self.closed.update(job.partition.split(","))

    def _start(self, job: Job, request: Request, found: _Found, unused: NodeSet) -> None:
        if self._is_behind(job):
            self.out.behind.add(job.job_id)
        self.shadows.start(found.whole, request.limit_s, unused)
        n_nodes = sum(demand.count for demand in found.whole)
        n_ours = n_nodes - sum(self.on_free.add_up_to(demand) for demand in found.whole)
        answer = Answer.NEEDS if n_ours else Answer.STARTS_ON_FREE
        if request.shared is not None:
            self.rooms.use(found.rooms, request.shared)
            for demand in found.whole:
                self.rooms.begin(self.requests.site, demand, request.shared)
        self.out.placed += [Placed(job=job, demand=demand) for demand in found.whole]
        self.out.verdicts.append(
            Verdict(
                job_id=job.job_id,
                answer=Answer.IN_DOUBT if request.doubt else answer,
                n_ours=n_ours,
                why=request.doubt,
            )
        )

    def _refuse(self, job: Job, why: str) -> bool:
        """Note it; later jobs must not delay what is planned for it.

        A plan for a time that has come is out of date. Whether it has one that is not, and
        that cannot be kept.
        """
        self.out.verdicts.append(Verdict(job_id=job.job_id, answer=Answer.CANNOT, why=why))
        if job.start_s is None or job.start_s <= self.requests.site.now_s or not job.planned_nodes:
            return False
        nodes = self.requests.site.sets.named(job.planned_nodes)
        if not self.shadows.keeps(job.start_s, nodes):
            return True
        self.barriers.append((job.start_s, nodes))
        return False

    def _kept_off(self, limit_s: float | None, *, is_behind: bool) -> NodeSet:
        """Return the nodes on which a job of that length would delay one before it."""
        known, off = self.kept_off.get((limit_s, is_behind), (0, 0))
        for start_s, nodes in self.barriers[known:]:
            begin_s, from_s = start_s, self.requests.site.now_s
            if is_behind:  # it starts when backfill comes
                begin_s = slot_begin_s(start_s, self.requests.site.slot_s)
                from_s = max(from_s, self.requests.site.cycle_at_s)
            if limit_s is not None and from_s + limit_s > begin_s:
                off |= nodes
        self.kept_off[limit_s, is_behind] = (len(self.barriers), off)
        return off
