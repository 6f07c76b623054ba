"""Replays in which decisions have to learn how fast trainers are, judged by the true curves.

A trace and an ``Arm`` (what users claim, what may be learnt) come in. Every decision is held
against the best one that somebody who knows the true curves would take in its place, from
the same nodes and the same present sizes: loss = 1 - worth of the one / worth of the other,
both by the true curves (eq. 16 of the BFTrainer paper). Called by ``bench_profiler.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from _bench.unknown_curves import Claim, LearningModel
from bftrainer.batch.traces.fragments import Fragments
from bftrainer.decide.policies.base import Context, Decided
from bftrainer.decide.policies.milp import POLICY
from bftrainer.lab.simulator.physical import PhysicalCosts, constant
from bftrainer.lab.simulator.replay import Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import SimTrainer, Tally
from bftrainer.lab.workloads import NETWORKS, Submission
from bftrainer.model.decision import DecisionInput, Plan
from milp.problem import Curve, Objective, Problem
from milp.solve import solve
from milp.worth import allocation_value

N_MAX = 64
NOISE = 0.05  # of one observation
COSTS = PhysicalCosts(
    claim=constant(5.0),
    warm_up=constant(10.0),
    pause_up=constant(0.3),
    pause_down=constant(0.1),
    pause_loss=constant(0.3),
)


def nothing(_submission: Submission) -> Curve | None:
    """No user says anything."""
    return None


def truth(submission: Submission) -> Curve | None:
    """Every user knows."""
    return submission.curve


def all_alike(submission: Submission) -> Curve | None:
    """Every user claims perfect scaling, from the true rate on one node on."""
    one = submission.curve.samples_per_s[0]
    return Curve(sizes=(1, N_MAX), samples_per_s=(one, N_MAX * one))


def somebody_elses(submission: Submission) -> Curve | None:
    """Every user takes the scaling of the next network of Table 2, times their own rate."""
    names = list(NETWORKS)
    other = NETWORKS[names[(names.index(submission.network) + 1) % len(names)]].curve
    factor = submission.curve.samples_per_s[0] / other.samples_per_s[0]
    return replace(other, samples_per_s=tuple(factor * r for r in other.samples_per_s))


def reversed_efficiency(submission: Submission) -> Curve | None:
    """Who scales best is said to scale worst: Table 2's order of efficiencies upside down."""
    by_efficiency = sorted(NETWORKS, key=lambda n: NETWORKS[n].scaling_efficiency(N_MAX))
    other = by_efficiency[-1 - by_efficiency.index(submission.network)]
    curve = NETWORKS[other].curve
    factor = submission.curve.samples_per_s[0] / curve.samples_per_s[0]
    return replace(curve, samples_per_s=tuple(factor * r for r in curve.samples_per_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What is known and what may be done to know more."""

    claim: Claim
    is_learning: bool = True
    explore_budget: float = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One decision."""

    now_s: float
    loss: float
    rescales: float  # so far, mean over the trainers that run


@dataclass(slots=True, kw_only=True)
class Learnt:
    """What came of one replay."""

    decisions: list[Judged] = field(default_factory=list)
    outcome: float = 0.0  # of all trainers, in the unit of the objective
    rescales: int = 0

    def loss_between(self, low: float, high: float) -> float:
        """Mean loss, by duration, while trainers had so many rescales."""
        spans = [
            (b.now_s - a.now_s, a.loss)
            for a, b in zip(self.decisions, self.decisions[1:], strict=False)
            if low <= a.rescales < high
        ]
        whole = sum(span for span, _ in spans)
        return sum(span * loss for span, loss in spans) / whole if whole else float("nan")


def workload(n_trainers: int) -> list[Submission]:
    """Networks of Table 2 in turn, none of which ever ends."""
    names = list(NETWORKS)
    return [
        Submission(
            submit_s=0.0,
            name=f"{names[k % len(names)]}-{k}",
            n_min=1,
            n_max=N_MAX,
            samples=1e15,
            curve=NETWORKS[names[k % len(names)]].curve,
            rescale_up_s=COSTS.pause_up.mean_s,
            rescale_down_s=COSTS.pause_down.mean_s,
            network=names[k % len(names)],
        )
        for k in range(n_trainers)
    ]


class _Judge:
    """The exact policy; keeps each decision's problem and judges its plan."""

    name, traits = POLICY.name, POLICY.traits

    def __init__(self, trainers: Mapping[str, SimTrainer]) -> None:
        self._trainers = trainers
        self._problem: Problem | None = None
        self.judged: list[Judged] = []

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Decide; the first call of a decision is the one without exploration."""
        self._problem = self._problem or problem
        return POLICY.allocate(problem, context)

    def decided(self, given: DecisionInput, plan: Plan) -> None:
        """Hold the plan against what was possible."""
        problem, self._problem = self._problem, None
        if problem is None:
            return
        true = replace(
            problem,
            trainers=tuple(
                replace(t, curve=self._trainers[t.trainer_id].submission.curve)
                for t in problem.trainers
            ),
        )
        best = solve(true).objective
        if best <= 0.0:
            return
        worth = allocation_value(true, plan.assignment)
        rescales = mean(self._trainers[r.trainer_id].rescales for r in given.trainers)
        self.judged.append(Judged(now_s=given.now_s, loss=1.0 - worth / best, rescales=rescales))


class _Judged(LearningModel):
    """A model that lets the judge know the trainers."""

    def __init__(self, arm: Arm, seed: int) -> None:
        super().__init__(
            Tally(),
            COSTS,
            seed=seed,
            claim=arm.claim,
            noise=NOISE,
            is_learning=arm.is_learning,
        )
        self.everybody: dict[str, SimTrainer] = {}

    def admit(self, trainer: SimTrainer) -> None:
        super().admit(trainer)
        self.everybody[trainer.trainer_id] = trainer


def learn(
    trace: Fragments,
    submissions: Sequence[Submission],
    arm: Arm,
    *,
    objective: Objective,
    seed: int,
) -> Learnt:
    """Replay a trace."""
    choices = Choices(objective=objective, p_jmax=len(submissions), costs=COSTS, seed=seed)
    books = _Judged(arm, seed)
    judge = _Judge(books.everybody)
    outcome = Replay(
        trace,
        submissions,
        settings=replace(settings_of(choices), explore_budget=arm.explore_budget),
        policy=judge,
        books=books,
        on_plan=judge.decided,
    ).run()
    relative = objective is not Objective.THROUGHPUT
    return Learnt(
        decisions=judge.judged,
        outcome=sum(t.done / (t.rates[1] if relative else 1.0) for t in outcome.trainers),
        rescales=sum(t.rescales for t in outcome.trainers),
    )
