"""One replay with given settings; called by the command line and by ``papers``.

``record`` returns a ``ReplayRun``, ``play`` its ``Outcome`` and ``Metrics``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.metrics import Metrics, measure
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.physical import Injection, PhysicalCosts, PhysicalModel, draw
from bftrainer.lab.simulator.replay import Outcome, Replay
from bftrainer.lab.simulator.trainers import Tally
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import DecisionInput, Plan, Settings
from bftrainer.model.fairness import Limits
from bftrainer.site.policy.calendar import next_blackout
from milp.problem import Objective, largest_size

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
    """One replay with metrics."""

    choices: Choices
    outcome: Outcome
    metrics: Metrics


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
        expects_losses=choices.costs is not None,  # else the paper's objective
    )


def play(
    trace: Fragments,
    workload: Iterable[Submission],
    choices: Choices,
    *,
    on_plan: OnPlan | None = None,
) -> tuple[Outcome, Metrics]:
    """Return outcome and metrics of ``record``."""
    run = record(trace, workload, choices, on_plan=on_plan)
    return run.outcome, run.metrics


def record(
    trace: Fragments,
    workload: Iterable[Submission],
    choices: Choices,
    *,
    on_plan: OnPlan | None = None,
) -> ReplayRun:
    """Replay a trace with a workload.

    Raises:
        UsageError: BFT-3050, there is no such policy.
    """
    policy, tally = load_policy(choices.policy), Tally()
    books = PaperModel(tally)
    if choices.costs is not None:
        books = PhysicalModel(
            tally,
            choices.costs,
            seed=choices.seed,
            slow=draw(trace.names, choices.slow, choices.straggler_threshold, choices.seed),
            runs_as_submitter=choices.runs_as_submitter,
        )
    if policy.traits.is_rigid:
        nodes = job_nodes(trace, choices)
        workload = [of_size(submission, nodes) for submission in workload]
    outcome = Replay(
        trace,
        workload,
        settings=settings_of(choices),
        policy=policy,
        books=books,
        seed=choices.seed,
        blackout_at=partial(next_blackout, choices.blackouts, choices.time_zone),
        poll_s=choices.poll_s,
        on_plan=on_plan,
    ).run()
    return ReplayRun(choices=choices, outcome=outcome, metrics=measure(outcome))


def job_nodes(trace: Fragments, choices: Choices) -> int:
    """Return how many nodes a job asks for under a policy that gives it these or none.

    Unless it is chosen: what a trainer has of N_eq nodes shared equally, the size at which
    A_s counts it.
    """
    if choices.job_nodes is not None:
        return choices.job_nodes
    return max(1, round(trace.equivalent_nodes() / choices.p_jmax))


def of_size(submission: Submission, nodes: int) -> Submission:
    """Return a trainer of one size, as a rigid policy has it: the nearest that it can have."""
    n_min, n_max, sizes = submission.n_min, submission.n_max, submission.sizes
    size = largest_size(nodes, n_min, n_max, sizes) or n_min
    return replace(submission, n_min=size, n_max=size, sizes=())
