"""One replay with given settings; called by the command line and by ``papers``.

``play`` returns ``Outcome`` and ``Metrics``; ``record`` returns a ``ReplayRun`` with the history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.costs import Injection, PhysicalCosts, SlowNodes, draw
from bftrainer.lab.simulator.history import History, Recorder
from bftrainer.lab.simulator.metrics import Metrics, measure
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.physical import PhysicalModel
from bftrainer.lab.simulator.replay import Outcome, Replay, TrainerModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally
from bftrainer.lab.workloads.submission import Submission
from bftrainer.model.decision import DecisionInput, Plan, Settings
from bftrainer.model.fairness import Limits
from bftrainer.site.policy.calendar import next_blackout
from milp.problem import Objective

OnPlan = Callable[[DecisionInput, Plan], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The settings of a replay, besides trace and workload."""

    policy: str = "milp"
    objective: Objective = Objective.THROUGHPUT
    t_fwd_s: float = 120.0
    p_jmax: int = 10
    costs: PhysicalCosts | None = None  # None: the paper's bookkeeping
    poll_s: float | None = None  # in place of the costs' detection; None: no polls
    seed: int = 1
    slow: Injection | None = None  # nodes that are slow for anyone; with physical costs only
    straggler_threshold: float = 0.8  # of the decision; 0: stragglers stay
    runs_as_submitter: bool = False  # pilots, with physical costs only (bftrainer.decide.claims)
    half_life_s: float | None = None  # of fair share; None: first come, first served
    limits: Limits = field(default_factory=Limits)
    blackouts: tuple[str, ...] = ()  # windows of the policy
    time_zone: str | None = "UTC"  # of the windows; None: the machine's
    job_nodes: int | None = None  # what a job of a rigid policy asks for; None: the static share


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRun:
    """One replay with metrics and history."""

    choices: Choices
    outcome: Outcome
    metrics: Metrics
    history: History


def settings_of(choices: Choices) -> Settings:
    """Return the decision's settings: those of a site that takes every idle node at once.

    A trace does not tell when a gap ends, so no gap is too short. With physical costs the length of
    a pilot is not limited.
    """
    return Settings(
        policy=choices.policy,
        objective=choices.objective,
        t_fwd_s=choices.t_fwd_s,
        p_jmax=choices.p_jmax,
        skip_unstartable=False,  # the first p_jmax of the queue enter, as in the paper
        reserve_nodes_per_type=0,
        min_gap_s=0.0,
        gap_margin_s=0.0,
        pilot_time_limit_s=7 * 86400.0,
        cycle_s=1800.0,  # a trace has no scheduler cycles; pilots start at once
        straggler_threshold=choices.straggler_threshold if choices.slow else 0.0,
        limits=choices.limits,
        fair_share_half_life_s=choices.half_life_s,
    )


def play(
    trace: Fragments,
    workload: Iterable[Submission],
    choices: Choices,
    *,
    on_plan: OnPlan | None = None,
) -> tuple[Outcome, Metrics]:
    """Replay a trace with a workload.

    Raises:
        UsageError: BFT-3050, there is no such policy.
    """
    run = record(trace, workload, choices, on_plan=on_plan)
    return run.outcome, run.metrics


def record(
    trace: Fragments,
    workload: Iterable[Submission],
    choices: Choices,
    *,
    on_plan: OnPlan | None = None,
) -> ReplayRun:
    """Replay a trace with a workload and record its history.

    Raises:
        UsageError: BFT-3050, there is no such policy.
    """
    tally, admitted = Tally(), list[SimTrainer]()
    recorder = Recorder(tally, admitted, trace.span_s)

    def decided(given: DecisionInput, plan: Plan) -> None:
        recorder.decided(given.now_s)
        if on_plan is not None:
            on_plan(given, plan)

    outcome = Replay(
        trace,
        _submitted(trace, workload, choices),
        settings=settings_of(choices),
        policy=load_policy(choices.policy),
        books=_books(choices, tally, admitted, trace.names),
        seed=choices.seed,
        blackout_at=partial(next_blackout, choices.blackouts, choices.time_zone),
        poll_s=choices.poll_s,
        on_plan=decided,
    ).run()
    history = recorder.history()
    metrics = measure(outcome, decision_s=history.decision_s)
    return ReplayRun(choices=choices, outcome=outcome, metrics=metrics, history=history)


def job_nodes(trace: Fragments, choices: Choices) -> int:
    """Return how many nodes a job asks for under a policy that gives it these or none.

    Unless it is chosen: what a trainer has of N_eq nodes shared equally, the size at which
    A_s counts it.
    """
    if choices.job_nodes is not None:
        return choices.job_nodes
    return max(1, round(trace.equivalent_nodes() / choices.p_jmax))


def _submitted(
    trace: Fragments, workload: Iterable[Submission], choices: Choices
) -> Iterable[Submission]:
    """Return the workload; for a rigid policy each trainer has one size."""
    if not load_policy(choices.policy).traits.is_rigid:
        return workload
    wanted = job_nodes(trace, choices)
    return [_of_size(s, max(s.n_min, min(s.n_max, wanted))) for s in workload]


def _of_size(submission: Submission, nodes: int) -> Submission:
    return replace(submission, n_min=nodes, n_max=nodes)


def _books(
    choices: Choices, tally: Tally, admitted: list[SimTrainer], names: Sequence[str]
) -> TrainerModel:
    if choices.costs is None:
        return _Paper(tally, admitted)
    slow = draw(names, choices.slow, choices.straggler_threshold, choices.seed)
    return _Physical(tally, choices, choices.costs, admitted, slow)


class _Paper(PaperModel):
    """The paper's cost model, with a list of the admitted trainers."""

    def __init__(self, tally: Tally, admitted: list[SimTrainer]) -> None:
        super().__init__(tally)
        self._admitted = admitted

    def admit(self, trainer: SimTrainer) -> None:
        super().admit(trainer)
        self._admitted.append(trainer)


class _Physical(PhysicalModel):
    """The physical cost model, with a list of the admitted trainers."""

    def __init__(
        self,
        tally: Tally,
        choices: Choices,
        costs: PhysicalCosts,
        admitted: list[SimTrainer],
        slow: SlowNodes,
    ) -> None:
        as_submitter = choices.runs_as_submitter
        super().__init__(tally, costs, seed=choices.seed, slow=slow, runs_as_submitter=as_submitter)
        self._admitted = admitted

    def admit(self, trainer: SimTrainer) -> None:
        super().admit(trainer)
        self._admitted.append(trainer)
