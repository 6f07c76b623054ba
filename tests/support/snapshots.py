"""Builders for snapshots, pilots and trainers, and a fold that decides step by step.

What a test leaves out takes a value that does not matter. Tests of ``decide`` and of
whatever shows its plans build their inputs here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bftrainer.decide import giveback
from bftrainer.decide.decision import decide
from bftrainer.decide.division import divided
from bftrainer.decide.draft import Draft
from bftrainer.decide.policies.base import Context, Decided, Traits
from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.decide.victims import Pick
from bftrainer.model.census import census_of
from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    NodeState,
    Reservation,
    SchedulerCycle,
    Snapshot,
)
from bftrainer.model.decision import DecisionInput, Memory, PilotView, Plan, Settings, Slept
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord, TrainerSpec, TrainerState
from milp.problem import Problem
from milp.solve import solve
from slurm_plugins.fields import ways_of

T0 = 1_700_000_000.0
AWAKE = Slept()  # a daemon that was, all the time


class ExactPolicy:
    """The exact solver; keeps the problems it was given."""

    name = "exact"
    traits = Traits()

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def allocate(self, problem: Problem, _context: Context, /) -> Decided:
        self.problems.append(problem)
        return Decided(allocation=solve(problem))


def node(
    name: str,
    state: NodeState = NodeState.IDLE,
    *,
    reason: str = "",
    node_type: str = "default",
    gpus: int = 0,
    features: tuple[str, ...] = (),
    partitions: tuple[str, ...] = (),
) -> Node:
    return Node(
        name=name,
        state=state,
        reason=reason,
        node_type=node_type,
        gpus=gpus,
        features=features,
        partitions=partitions,
    )


def node_names(count: int) -> list[str]:
    """n1 … n<count>."""
    return [f"n{k}" for k in range(1, count + 1)]


def idle_nodes(count: int) -> tuple[Node, ...]:
    """n1 … n<count>, all idle."""
    return tuple(map(node, node_names(count)))


def with_state(nodes: Sequence[Node], state: NodeState, *names: str) -> tuple[Node, ...]:
    return tuple(replace(n, state=state) if n.name in names else n for n in nodes)


def pending(
    job_id: str,
    n_nodes: int,
    *,
    limit_s: float | None = 600.0,
    reason: str = "Resources",
    is_entitled: bool = True,
    priority: float = 0.0,
    submit_s: float = T0,
    start_s: float | None = None,
    planned: tuple[str, ...] = (),
    required: tuple[str, ...] = (),
    features: str = "",
    gpus_per_node: int = 0,
    partition: str = "batch",
) -> Job:
    """``features``, ``partition`` and the id as Slurm writes them."""
    return Job(
        job_id=job_id,
        user="alice",
        family=_family(job_id),
        partitions=tuple(filter(None, partition.split(","))),
        state=JobState.PENDING,
        n_nodes=n_nodes,
        time_limit_s=limit_s,
        reason=reason,
        is_entitled=is_entitled,
        priority=priority,
        submit_s=submit_s,
        start_s=start_s,
        planned_nodes=planned,
        required_nodes=required,
        wants=ways_of(features),
        gpus_per_node=gpus_per_node,
    )


def _family(job_id: str) -> str:
    base = job_id.partition("_")[0].partition("+")[0]
    return base if base != job_id else ""


def running(job_id: str, *nodes: str, start_s: float = T0) -> Job:
    return Job(
        job_id=job_id,
        family=_family(job_id),
        user="alice",
        partitions=("batch",),
        state=JobState.RUNNING,
        n_nodes=len(nodes),
        time_limit_s=3600.0,
        start_s=start_s,
        nodes=nodes,
    )


def snapshot(
    nodes: Sequence[Node],
    jobs: Sequence[Job] = (),
    *,
    at_s: float = T0,
    cycle_ended_s: float | None = None,
    reservations: Sequence[Reservation] = (),
) -> Snapshot:
    return Snapshot(
        taken_at_s=at_s,
        nodes=tuple(nodes),
        jobs=tuple(jobs),
        reservations=tuple(reservations),
        cycle=SchedulerCycle(ended_s=cycle_ended_s),
    )


SOURCES = ("nodes", "jobs", "reservations")


def without(seen: Snapshot, source: str) -> Snapshot:
    """The same look, but one of ``SOURCES`` did not answer."""
    return Snapshot(
        taken_at_s=seen.taken_at_s,
        nodes=None if source == "nodes" else seen.nodes,
        jobs=None if source == "jobs" else seen.jobs,
        reservations=None if source == "reservations" else seen.reservations,
        cycle=seen.cycle,
        failures=(f"The {source} could not be read.",),
    )


def pilot(
    node_name: str,
    *,
    is_held: bool = True,
    is_leaving: bool = False,
    requested_s: float = T0,
    end_s: float | None = None,
) -> PilotView:
    return PilotView(
        pilot_id=f"p-{node_name}",
        node=node_name,
        requested_s=requested_s,
        is_held=is_held,
        is_leaving=is_leaving,
        end_s=end_s,
    )


def held(*names: str) -> tuple[PilotView, ...]:
    return tuple(pilot(n) for n in names)


def record(
    trainer_id: str = "t1",
    *,
    n_min: int = 1,
    n_max: int = 8,
    state: TrainerState = TrainerState.QUEUED,
    reason: str = "",
    costs: MeasuredCosts | None = None,
) -> TrainerRecord:
    return TrainerRecord(
        trainer_id=trainer_id,
        spec=TrainerSpec(name=trainer_id, user="bob", script="/s.py", n_min=n_min, n_max=n_max),
        state=state,
        submitted_s=T0,
        reason=reason,
        costs=costs or MeasuredCosts(),
    )


@dataclass(slots=True, kw_only=True)
class Fold:
    """Decides again and again and carries the memory along, as the daemon does."""

    settings: Settings = field(default_factory=lambda: Settings(reserve_nodes_per_type=0))
    memory: Memory = field(default_factory=Memory)
    policy: ExactPolicy = field(default_factory=ExactPolicy)
    now_s: float = T0
    in_haste: Plan | None = None  # what the last one would have been, in haste

    def decide(
        self,
        seen: Snapshot,
        pilots: Sequence[PilotView] = (),
        trainers: Sequence[TrainerRecord] = (),
        *,
        at_s: float | None = None,
        is_new: bool = True,
        training: Mapping[str, str] | None = None,
        speeds: Mapping[str, float] | None = None,
        occupied: Mapping[str, str] | None = None,
        apart: Mapping[str, Mapping[str, float]] | None = None,
        slept: Slept = AWAKE,
    ) -> Plan:
        self.now_s = self.now_s if at_s is None else at_s
        given = DecisionInput(
            now_s=self.now_s,
            snapshot=seen,
            is_new_snapshot=is_new,
            pilots=tuple(pilots),
            trainers=tuple(trainers),
            settings=self.settings,
            memory=self.memory,
            training=training or {},
            speeds=speeds or {},
            occupied=occupied or {},
            apart=apart or {},
            slept=slept,
        )
        self.in_haste = decide(replace(given, gives_back_only=True), self.policy)
        plan = decide(given, self.policy)
        self.memory = plan.memory
        return plan


def by_name(count: int, candidates: Collection[str], gone: Collection[str]) -> list[str]:
    """``Pick`` that knows nothing of trainers."""
    del gone
    assert count <= len(candidates)
    return sorted(candidates)[:count]


def given_back(
    seen: Snapshot,
    pilots: Sequence[PilotView],
    memory: Memory | None = None,
    *,
    now_s: float = T0,
    pick: Pick = by_name,
    settings: Settings = Settings(),  # noqa: B008 - frozen
) -> Draft:
    """What goes, and who gets nothing: a decision after its first stage."""
    given = DecisionInput(
        now_s=now_s,
        snapshot=seen,
        is_new_snapshot=True,
        pilots=tuple(pilots),
        trainers=(),
        settings=settings,
        memory=memory or Memory(),
    )
    as_shown, given = given, divided(given)
    census = census_of(given.snapshot, given.pilots)
    hosts = census if given is as_shown else census_of(seen)
    queue = PrintedQueue(hosts, now_s, given.settings.cycle_s)
    draft = Draft(
        given=given,
        census=census,
        hosts=hosts,
        queue=queue,
        memory=given.memory,
        pick=pick,
        policy=None,
    )
    return giveback.stage(draft)


def claimed(plan: Plan) -> set[str]:
    return {c.node for c in plan.claims}


def released(plan: Plan) -> set[str]:
    return {r.node for r in plan.releases}


def record_of(user: str, trainer_id: str, *, account: str = "", n_min: int = 1) -> TrainerRecord:
    """Return the record of somebody's trainer."""
    of_bob = record(trainer_id, n_min=n_min)
    return replace(of_bob, spec=replace(of_bob.spec, user=user, account=account))
