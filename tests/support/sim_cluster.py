"""A batch system small enough to reason about: nodes, a queue, backfill, pilots.

Ordinary jobs go first, jobs behind a blocked head must not delay it, pilots take what
is left. Time moves when a test says so. Used by the property test of ``decide``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bftrainer.model.cluster import Job, JobState, Node, NodeState, SchedulerCycle, Snapshot
from bftrainer.model.decision import PilotView, Plan
from tests.support.snapshots import T0


@dataclass(slots=True, kw_only=True)
class SimJob:
    """An ordinary job; ``is_hopeless``: something we cannot see keeps it from starting."""

    job_id: str
    n_nodes: int
    limit_s: float
    is_hopeless: bool = False
    submit_s: float = 0.0
    start_s: float | None = None
    nodes: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class SimPilot:
    """A pilot job."""

    pilot_id: str
    node: str
    limit_s: float
    requested_s: float
    start_s: float | None = None
    is_held: bool = False
    is_leaving: bool = False


@dataclass(slots=True, kw_only=True)
class SimCluster:
    """The whole batch system."""

    types: dict[str, str]  # node -> type
    now_s: float = T0
    cycle_ended_s: float | None = None
    drained: set[str] = field(default_factory=set)
    jobs: dict[str, SimJob] = field(default_factory=dict)
    pilots: dict[str, SimPilot] = field(default_factory=dict)
    submitted: int = 0
    is_frozen: bool = False  # jobs run for ever

    def owner_of(self) -> dict[str, str]:
        """Node → the job or pilot that is on it."""
        owners = {n: j.job_id for j in self.jobs.values() for n in j.nodes}
        for pilot in self.pilots.values():
            if pilot.start_s is not None:
                assert pilot.node not in owners, "two on one node"
                owners[pilot.node] = pilot.pilot_id
        return owners

    def free(self) -> list[str]:
        owners = self.owner_of()
        return [n for n in sorted(self.types) if n not in owners and n not in self.drained]

    def waiting(self) -> list[SimJob]:
        return sorted(
            (j for j in self.jobs.values() if j.start_s is None),
            key=lambda j: (j.submit_s, j.job_id),
        )

    # ---- what happens ------------------------------------------------------------------

    def submit(self, n_nodes: int, limit_s: float, *, is_hopeless: bool) -> None:
        self.submitted += 1
        job_id = f"{self.submitted:04d}"
        self.jobs[job_id] = SimJob(
            job_id=job_id,
            n_nodes=n_nodes,
            limit_s=limit_s,
            is_hopeless=is_hopeless,
            submit_s=self.now_s,
        )

    def pass_time(self, seconds: float) -> None:
        """Leaving pilots go, limits strike."""
        self.now_s += seconds
        for pilot in list(self.pilots.values()):
            over = pilot.start_s is not None and self.now_s >= pilot.start_s + pilot.limit_s
            if pilot.is_leaving or over:
                del self.pilots[pilot.pilot_id]
        for job in () if self.is_frozen else list(self.jobs.values()):
            if job.start_s is not None and self.now_s >= job.start_s + job.limit_s:
                del self.jobs[job.job_id]

    def connect_agents(self) -> None:
        for pilot in self.pilots.values():
            pilot.is_held = pilot.is_held or (pilot.start_s is not None and not pilot.is_leaving)

    def cycle(self) -> None:
        """One pass of the scheduler over the queue, pilots last."""
        blocked: SimJob | None = None
        for job in self.waiting():
            free = [n for n in self.free() if self._spares(job, n, blocked)]
            if len(free) < job.n_nodes or job.is_hopeless:
                blocked = blocked or job
                continue
            job.start_s, job.nodes = self.now_s, tuple(free[: job.n_nodes])
        free_now = set(self.free())
        planned_s, planned = self.head_plan()
        for pilot in self.pilots.values():
            if pilot.start_s is None and pilot.node in free_now and not pilot.is_leaving:
                ends_s = self.now_s + pilot.limit_s
                if pilot.node not in planned or planned_s is None or ends_s <= planned_s:
                    pilot.start_s = self.now_s
                    free_now.discard(pilot.node)
        self.cycle_ended_s = self.now_s

    def _spares(self, job: SimJob, node: str, blocked: SimJob | None) -> bool:
        if blocked is None:
            return True
        planned_s, planned = self.head_plan()
        return node not in planned or planned_s is None or self.now_s + job.limit_s <= planned_s

    def head_plan(self) -> tuple[float | None, tuple[str, ...]]:
        """When and where the first waiting job is planned; pilots count as nothing."""
        head = next(iter(self.waiting()), None)
        if head is None or head.is_hopeless:
            return None, ()
        until = {
            n: max(self.now_s, j.start_s + j.limit_s)
            for j in self.jobs.values()
            if j.start_s is not None
            for n in j.nodes
        }
        usable = sorted((until.get(n, self.now_s), n) for n in self.types if n not in self.drained)
        chosen = usable[: head.n_nodes]
        if len(chosen) < head.n_nodes:
            return None, ()
        return chosen[-1][0], tuple(n for _, n in chosen)

    # ---- what is seen --------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        owners = self.owner_of()
        planned_s, planned = self.head_plan()
        nodes = []
        for name, node_type in sorted(self.types.items()):
            state = NodeState.ALLOCATED if name in owners else NodeState.IDLE
            if state is NodeState.IDLE and name in planned:
                state = NodeState.PLANNED
            if name in self.drained:
                state = NodeState.DRAINED
            nodes.append(Node(name=name, state=state, node_type=node_type))
        head = next(iter(self.waiting()), None)
        jobs = [
            Job(
                job_id=j.job_id,
                user="alice",
                partitions=("batch",),
                state=JobState.PENDING if j.start_s is None else JobState.RUNNING,
                n_nodes=j.n_nodes,
                time_limit_s=j.limit_s,
                reason="Resources",
                submit_s=j.submit_s,
                start_s=planned_s if j is head else j.start_s,
                nodes=j.nodes,
                planned_nodes=planned if j is head else (),
            )
            for j in self.jobs.values()
        ]
        jobs += [
            Job(
                job_id=f"j-{p.pilot_id}",
                user="bft",
                partitions=("bf",),
                state=JobState.PENDING if p.start_s is None else JobState.RUNNING,
                n_nodes=1,
                time_limit_s=p.limit_s,
                start_s=p.start_s,
                nodes=() if p.start_s is None else (p.node,),
                pilot_id=p.pilot_id,
            )
            for p in self.pilots.values()
        ]
        return Snapshot(
            taken_at_s=self.now_s,
            nodes=tuple(nodes),
            jobs=tuple(jobs),
            cycle=SchedulerCycle(ended_s=self.cycle_ended_s),
        )

    def views(self) -> tuple[PilotView, ...]:
        return tuple(
            PilotView(
                pilot_id=p.pilot_id,
                node=p.node,
                requested_s=p.requested_s,
                is_held=p.is_held and not p.is_leaving,
                is_leaving=p.is_leaving,
                end_s=None if p.start_s is None else p.start_s + p.limit_s,
            )
            for p in self.pilots.values()
        )

    def carry_out(self, plan: Plan) -> None:
        """Submit the claims, cancel the releases."""
        for release in plan.releases:
            self.pilots[release.pilot_id].is_leaving = True
        for claim in plan.claims:
            self.submitted += 1
            self.add_pilot(f"p{self.submitted:04d}", claim.node, claim.time_limit_s)

    def add_pilot(self, pilot_id: str, node: str, limit_s: float) -> None:
        self.pilots[pilot_id] = SimPilot(
            pilot_id=pilot_id, node=node, limit_s=limit_s, requested_s=self.now_s
        )
