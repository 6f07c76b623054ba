"""Plays a workload on AdaptDL's cluster: every minute the policy gives each job a number of GPUs.

The policy sees a problem whose nodes are the 64 GPUs; which GPUs of which nodes a job really gets
is decided here, as in the artifact: a job whose number changes gets new ones, always of the
emptiest node, in the policy's order of admission or, if it has none, smallest first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Standing,
    in_order,
    options_of,
)
from bftrainer.decide.policy_answer import ask
from bftrainer.lab.adaptdl.job import PAUSE_S, AdaptdlJob, estimated_curve, most_gpus
from milp.problem import Objective, Problem, ProblemNode, ProblemTrainer

TICK_S = 60
NODES, GPUS_PER_NODE = 16, 4
GPUS = tuple([ProblemNode(name=f"gpu{i:02}") for i in range(NODES * GPUS_PER_NODE)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The inputs of a policy beside jobs and GPUs."""

    options: Mapping[str, Any] = field(default_factory=dict)  # of the policy
    is_rigid: bool = False  # jobs run on what they requested or not at all
    objective: Objective = Objective.SCALING_EFFICIENCY
    t_fwd_s: float = 120.0
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptdlOutcome:
    """The result of a played workload; each job has its end time."""

    jobs: tuple[AdaptdlJob, ...]
    decisions: int
    decide_s: float  # processor time of them all

    def completion_s(self) -> dict[str, int]:
        """Return each job's time from submission to end; those that the policy ended have none."""
        return {j.name: j.ended_s - j.submitted_s for j in self.jobs if j.ended_s is not None}


class AdaptdlPlay:
    """One play; ``run`` goes on until all jobs have ended."""

    def __init__(self, jobs: Sequence[AdaptdlJob], policy: AllocationPolicy, setup: Setup) -> None:
        """Prepare; jobs are in order of submission.

        Raises:
            OptionError: BFT-3053, the policy does not have such options.
        """
        self._jobs, self._policy, self._setup = tuple(jobs), policy, setup
        self._options = options_of(policy, setup.options)
        self._state: Any = None
        self._held: dict[str, tuple[str, ...]] = {}  # nodes of the problem by job
        self._trainers = {job.name: self._trainer(job) for job in jobs}

    def run(self) -> AdaptdlOutcome:
        """Play it to the end.

        Raises:
            BftError: BFT-3054, an answer is not valid; BFT-3072, a size was never measured.
        """
        now_s, decisions, decide_s = 0, 0, 0.0
        while not all(job.is_over for job in self._jobs):
            for job in self._jobs:
                job.advance(now_s, TICK_S)
            now_s += TICK_S
            active = [job for job in self._jobs if job.submitted_s <= now_s and not job.is_over]
            if active:
                began = time.process_time()
                decided = self._ask(active, now_s)
                decide_s += time.process_time() - began
                decisions += 1
                self._carry_out(active, decided)
        return AdaptdlOutcome(jobs=self._jobs, decisions=decisions, decide_s=decide_s)

    def _trainer(self, job: AdaptdlJob) -> ProblemTrainer:
        most = min(len(GPUS), most_gpus(job.application, job.batch))
        curve = estimated_curve(job.application, job.batch, most, GPUS_PER_NODE)
        rigid = self._setup.is_rigid
        return ProblemTrainer(
            trainer_id=job.name,
            n_min=job.requested if rigid else 1,
            n_max=job.requested if rigid else curve.sizes[-1],
            curve=curve,
            rescale_up_s=PAUSE_S,
            rescale_down_s=PAUSE_S,
        )

    def _ask(self, active: Sequence[AdaptdlJob], now_s: int) -> Decided:
        setup = self._setup
        problem = Problem(
            nodes=GPUS,
            trainers=tuple(
                [
                    replace(self._trainers[job.name], current=self._held.get(job.name, ()))
                    for job in active
                ]
            ),
            t_fwd_s=setup.t_fwd_s,
            p_jmax=len(active),
            objective=setup.objective,
        )
        context = Context(
            now_s=float(now_s),
            seed=setup.seed,
            options=self._options,
            state=self._state,
            trainers={job.name: _standing(job) for job in active},
        )
        return ask(self._policy, problem, context)

    def _carry_out(self, active: Sequence[AdaptdlJob], decided: Decided) -> None:
        held: dict[str, list[str]] = {}
        for gpu, name in decided.allocation.assignment.items():
            held.setdefault(name, []).append(gpu)
        self._state = decided.state
        self._held = {name: tuple(gpus) for name, gpus in held.items()}
        sizes = decided.allocation.sizes()
        by_name = {job.name: job for job in active}
        changed = [job for job in active if len(job.nodes) != sizes.get(job.name, 0)]
        for job in changed:
            job.move(())
        for name, why in decided.dropped.items():
            by_name[name].dropped = why
        order = [by_name[name] for name in in_order(by_name, decided.order)]
        if not decided.order:
            order.sort(key=lambda job: sizes.get(job.name, 0))
        free = [GPUS_PER_NODE] * NODES
        for job in active:
            for node in job.nodes:
                free[node] -= 1
        for job in order:
            if job in changed and job.name in sizes:
                job.move(place(sizes[job.name], free))


def _standing(job: AdaptdlJob) -> Standing:
    return Standing(
        submitted_s=float(job.submitted_s),
        attained_node_s=float(job.gpu_s),
        done_samples=round(job.steps_done() * job.batch),
        left_samples=round(job.steps_left() * job.batch),
    )


def place(n_gpus: int, free: list[int]) -> tuple[int, ...]:
    """Take GPUs of the emptiest nodes, the lowest number of equals; ``free`` changes."""
    nodes: list[int] = []
    while len(nodes) < n_gpus:
        node = max(range(len(free)), key=lambda i: (free[i], -i))
        taken = min(free[node], n_gpus - len(nodes))
        nodes += [node] * taken
        free[node] -= taken
    return tuple(nodes)


def play(jobs: Iterable[AdaptdlJob], policy: AllocationPolicy, setup: Setup) -> AdaptdlOutcome:
    """Play a workload with a policy.

    Raises:
        BftError: as ``Cluster.run``; OptionError, as ``AdaptdlPlay``.
    """
    return AdaptdlPlay(tuple(jobs), policy, setup).run()
