"""One replay from plain choices: what the command line and the reproduction call.

A trace, a workload and ``Choices`` come in, an ``Outcome`` with its ``Metrics`` goes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bftrainer.decide.policies.base import load_policy
from bftrainer.decide.types import DecisionInput, Plan, Settings
from bftrainer.simulate.costs import PhysicalCosts
from bftrainer.simulate.metrics import Metrics, measure
from bftrainer.simulate.paper import PaperBooks
from bftrainer.simulate.physical import PhysicalBooks
from bftrainer.simulate.replay import Books, Outcome, Replay
from bftrainer.simulate.tally import Tally
from bftrainer.simulate.traces.fragments import Fragments
from bftrainer.simulate.workloads.submission import Submission
from milp.problem import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a replay is played with, beside trace and workload."""

    policy: str = "milp"
    objective: Objective = Objective.THROUGHPUT
    t_fwd_s: float = 120.0
    p_jmax: int = 10
    costs: PhysicalCosts | None = None  # None: the paper's bookkeeping
    seed: int = 1


def settings_of(choices: Choices) -> Settings:
    """Return the decision's settings: those of a site that takes every idle node at once.

    A trace does not say when a gap ends, so nothing is kept off for being too short; with
    physical costs a pilot may last as long as it likes.
    """
    return Settings(
        policy=choices.policy,
        objective=choices.objective,
        t_fwd_s=choices.t_fwd_s,
        p_jmax=choices.p_jmax,
        reserve_nodes_per_type=0,
        min_gap_s=0.0,
        gap_margin_s=0.0,
        pilot_time_limit_s=7 * 86400.0,
        pilot_start_timeout_s=3600.0,
    )


def play(
    trace: Fragments,
    workload: Iterable[Submission],
    choices: Choices,
    *,
    on_plan: Callable[[DecisionInput, Plan], None] | None = None,
) -> tuple[Outcome, Metrics]:
    """Replay a trace with a workload.

    Raises:
        UsageError: BFT-3050, there is no such policy.
    """
    books: Books = (
        PaperBooks(Tally())
        if choices.costs is None
        else PhysicalBooks(Tally(), choices.costs, seed=choices.seed)
    )
    outcome = Replay(
        trace,
        workload,
        settings=settings_of(choices),
        policy=load_policy(choices.policy),
        books=books,
        on_plan=on_plan,
    ).run()
    return outcome, measure(outcome)
