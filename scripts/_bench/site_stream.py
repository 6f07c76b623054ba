"""Decisions of a large site, one after the other: what a daemon there would write down.

Nodes, queue and trainers are drawn; between two looks some jobs end, start and are submitted,
every 30 s the scheduler plans anew, every 300 s the priorities of all that wait change. What
could start has started: who waits is larger than what is idle or held, or waits for a limit or
another job. One job in ten that are submitted finds too few nodes idle, and gets some of ours.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.model.cluster import (
    Job,
    JobState,
    Node,
    NodeState,
    Partition,
    SchedulerCycle,
    Snapshot,
)
from bftrainer.model.decision import Claim, DecisionInput, Memory, PilotView, Plan, Settings
from bftrainer.model.trainer import TrainerProgress, TrainerRecord, TrainerSpec, TrainerState
from slurm_plugins.fields import ways_of

BEGIN_S: Final = 1_700_000_000.0
CYCLE_S: Final = 30.0
PRIORITIES_S: Final = 300.0  # PriorityCalcPeriod
PLANNED: Final = 50  # jobs that the scheduler has planned
TRAINERS: Final = 100
RUNNING: Final = 10  # of the trainers
IDLE_SHARE: Final = 0.2  # of the nodes; half of them are held at the beginning
_SIZES: Final = (1, 1, 1, 2, 4, 8, 16, 32, 64)
_LIMITS: Final = ("Dependency", "AssocGrpCpuLimit", "QOSMaxJobsPerUserLimit")
_KINDS: Final = (
    ("gpu:a100:4", 4, 64, 512_000, ("a100", "ib")),
    ("cpu", 0, 128, 256_000, ("epyc", "ib")),
    ("gpu:v100:4", 4, 40, 384_000, ("v100",)),
)


@dataclass(slots=True, kw_only=True)
class SiteStream:
    """The site between two looks; ``look``, decide, ``took``, and again."""

    n_nodes: int
    n_pending: int
    between_s: float  # two looks
    chance: random.Random
    now_s: float = BEGIN_S
    memory: Memory = field(default_factory=Memory)
    _pending: list[Job] = field(default_factory=list)
    _running: list[Job] = field(default_factory=list)
    _pilots: dict[str, PilotView] = field(default_factory=dict)  # by node
    _free: set[str] = field(default_factory=set)
    _last_job: int = 0
    _last_pilot: int = 0

    def __post_init__(self) -> None:
        """Draw the site as it is at the first look."""
        names = [f"nid{k:06d}" for k in range(self.n_nodes)]
        idle = self.chance.sample(names, int(IDLE_SHARE * self.n_nodes))
        for node in idle[::2]:
            self._open(Claim(node=node, time_limit_s=14_400.0, for_trainer="t1"))
        self._free = set(idle[1::2])
        busy = [n for n in names if n not in set(idle)]
        while busy:
            size = self.chance.choice(_SIZES)
            self._start(self._new_job(min(size, len(busy))), busy[:size])
            del busy[:size]
        self._pending = [self._waiting_job() for _ in range(self.n_pending)]
        held = sorted(self._pilots)
        training = {node: f"t{1 + at % RUNNING}" for at, node in enumerate(held)}
        self.memory = Memory(assignment=training)

    def look(self) -> DecisionInput:
        """Let time pass and return what the next decision is taken of."""
        before_s, self.now_s = self.now_s, self.now_s + self.between_s
        for _ in range(self.chance.randint(1, 3)):
            if len(self._free) + len(self._pilots) <= IDLE_SHARE * self.n_nodes:
                self._end(self.chance.choice(self._running))
        self._start_what_fits()
        for _ in range(self.chance.randint(1, 3)):
            self._submit()
        if self.now_s // PRIORITIES_S > before_s // PRIORITIES_S:
            self._pending = [replace(j, priority=j.priority + 10.0) for j in self._pending]
        cycle_s = self.now_s // CYCLE_S * CYCLE_S
        return DecisionInput(
            now_s=self.now_s + 0.5,
            snapshot=self._snapshot(cycle_s),
            is_new_snapshot=True,
            pilots=tuple(sorted(self._pilots.values(), key=lambda p: p.pilot_id)),
            trainers=tuple(self._trainer(number) for number in range(1, TRAINERS + 1)),
            settings=Settings(straggler_threshold=0.8, explore_budget=0.02),
            memory=self.memory,
            training=dict(self.memory.assignment),
        )

    def took(self, plan: Plan) -> None:
        """Do what a decision says."""
        self.memory = plan.memory
        for release in plan.releases:
            self._pilots.pop(release.node, None)
            self._free.add(release.node)
        for claim in plan.claims:
            self._open(claim)

    def _open(self, claim: Claim) -> None:
        self._last_pilot += 1
        self._free.discard(claim.node)
        self._pilots[claim.node] = PilotView(
            pilot_id=f"p{self._last_pilot:06d}",
            node=claim.node,
            requested_s=self.now_s,
            is_held=True,
            end_s=self.now_s + claim.time_limit_s,
        )

    def _new_job(self, size: int) -> Job:
        self._last_job += 1
        return Job(
            job_id=str(self._last_job),
            user=f"u{self._last_job % 200}",
            partitions=(self.chance.choice(("batch", "batch", "batch", "debug")),),
            state=JobState.PENDING,
            n_nodes=size,
            time_limit_s=600.0 * self.chance.randint(1, 144),
            reason="Priority",
            priority=100_000.0 - self._last_job,
            submit_s=self.now_s,
            wants=ways_of(self.chance.choice(("", "", "", "a100", "ib&epyc", "a100|v100"))),
        )

    def _start(self, job: Job, nodes: list[str]) -> None:
        self._free.difference_update(nodes)
        self._running.append(
            replace(job, state=JobState.RUNNING, reason="", start_s=self.now_s, nodes=tuple(nodes))
        )

    def _end(self, job: Job) -> None:
        self._running.remove(job)
        self._free.update(job.nodes)

    def _waiting_job(self) -> Job:
        """One that cannot start, whatever we hold."""
        if self.chance.random() < 0.7:
            small = self._new_job(self.chance.choice(_SIZES))
            return replace(small, reason=self.chance.choice(_LIMITS), is_entitled=False)
        return self._new_job(int(self.n_nodes * self.chance.uniform(IDLE_SHARE + 0.1, 0.9)))

    def _submit(self) -> None:
        """Submit a job: it starts on idle nodes, waits for ours, or takes another's place."""
        free = sorted(self._free)
        if self.n_pending and self.chance.random() < 0.5:
            self._pending[self.chance.randrange(self.n_pending)] = self._waiting_job()
        elif self.chance.random() < 0.1:
            self._pending.append(self._new_job(len(free) + 1))
        else:
            size = min(self.chance.choice(_SIZES), len(free))
            if size:
                self._start(self._new_job(size), free[:size])

    def _start_what_fits(self) -> None:
        for job in self._pending[self.n_pending :]:
            if job.n_nodes <= len(self._free):
                self._pending.remove(job)
                self._start(job, sorted(self._free)[: job.n_nodes])

    def _snapshot(self, cycle_s: float) -> Snapshot:
        planned = [
            replace(job, start_s=cycle_s + 3600.0 + 60.0 * at)
            for at, job in enumerate(self._pending[:PLANNED])
        ]
        ours = [
            Job(
                job_id=str(10_000_000 + int(pilot.pilot_id[1:])),
                user="bft",
                partitions=("bft",),
                state=JobState.RUNNING,
                n_nodes=1,
                time_limit_s=14_400.0,
                start_s=pilot.requested_s,
                nodes=(pilot.node,),
                pilot_id=pilot.pilot_id,
            )
            for pilot in self._pilots.values()
        ]
        return Snapshot(
            taken_at_s=self.now_s,
            nodes=tuple(self._node(at) for at in range(self.n_nodes)),
            # As from a text: jobs that are equal to those of the last look, and not the same.
            jobs=(*map(replace, (*self._running, *planned, *self._pending[PLANNED:])), *ours),
            cycle=SchedulerCycle(began_s=cycle_s - 1.0, ended_s=cycle_s),
            plan_window_s=86_400.0,
            plan_resolution_s=60.0,
            pilots_come_last=True,
            partitions=(
                Partition(name="batch", tier=10),
                Partition(name="bft", tier=1),
                Partition(name="debug", tier=20, time_limit_s=86_400.0),
            ),
        )

    def _node(self, at: int) -> Node:
        node_type, gpus, cpus, memory_mb, features = _KINDS[at % len(_KINDS)]
        name = f"nid{at:06d}"
        return Node(
            name=name,
            state=NodeState.IDLE if name in self._free else NodeState.ALLOCATED,
            node_type=node_type,
            gpus=gpus,
            cpus=cpus,
            memory_mb=memory_mb,
            features=features,
            partitions=("batch", "bft", "debug") if at % 10 == 0 else ("batch", "bft"),
        )

    def _trainer(self, number: int) -> TrainerRecord:
        runs = number <= RUNNING
        steps = int(10.0 * (self.now_s - BEGIN_S))
        progress = TrainerProgress(
            generation=3, size=8, step=steps, samples=256 * steps, reported_s=self.now_s
        )
        return TrainerRecord(
            trainer_id=f"t{number}",
            spec=TrainerSpec(name="net", user=f"u{number}", script="/net.py", n_max=64),
            state=TrainerState.RUNNING if runs else TrainerState.QUEUED,
            submitted_s=BEGIN_S,
            progress=progress if runs else TrainerProgress(),
        )
