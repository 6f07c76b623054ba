"""One replay of section 5: its setting and its record.

Both are plain data, because replays are played in several processes.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.decide.policies.base import AllocationPolicy, load_policy
from bftrainer.lab.papers.bftrainer import policies
from bftrainer.lab.papers.bftrainer.policies import AnyNode
from bftrainer.lab.papers.bftrainer.scenario import (
    WeekOfNodes,
    first_hours,
    network_name,
    workload_of,
)
from bftrainer.lab.papers.bftrainer.series import PlanRecorder, Series
from bftrainer.lab.simulator.metrics import Metrics, measure
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.replay import Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import Tally
from milp.problem import Objective

REPLAYER_SHARE = policies.POLICY.name
SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PaperReplay:
    """The setting of a replay with the paper's cost model."""

    workload: str = "shufflenet"
    policy: str = "milp"
    objective: Objective = Objective.THROUGHPUT
    t_fwd_s: float = 120.0
    p_jmax: int = 10
    cost_factor: float = 1.0
    hours: float | None = None  # None: all of the scenario
    is_any_node: bool = False  # equal nodes are chosen at random, not by name


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerEnd:
    """The times at which a trainer started and finished."""

    network: str
    started_s: float | None
    finished_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The outcome of a replay."""

    run: PaperReplay
    metrics: Metrics
    series: Series
    trainers: tuple[TrainerEnd, ...]

    @property
    def u(self) -> float:
        """U of the replay, %."""
        return 100.0 * self.metrics.utilization


EQUAL = PaperReplay(policy="equal-share")
HEURISTIC = PaperReplay(policy=REPLAYER_SHARE)
MILP = PaperReplay()


def _policy(run: PaperReplay) -> AllocationPolicy:
    # The replayer's division is no policy for sites, so it is not an installed plug-in.
    is_replayers = run.policy == REPLAYER_SHARE
    policy = policies.POLICY if is_replayers else load_policy(run.policy)
    return AnyNode(policy, seed=SEED) if run.is_any_node else policy


def play(week: WeekOfNodes, run: PaperReplay) -> Record:
    """Play one replay."""
    trace = week.trace if run.hours is None else first_hours(week.trace, run.hours)
    workload = workload_of(week, run.workload, run.cost_factor)
    choices = Choices(objective=run.objective, t_fwd_s=run.t_fwd_s, p_jmax=run.p_jmax)
    watch = PlanRecorder()
    outcome = Replay(
        trace,
        workload,
        settings=settings_of(choices),
        policy=_policy(run),
        books=PaperModel(Tally()),
        on_plan=watch,
    ).run()
    return Record(
        run=run,
        metrics=measure(outcome),
        series=watch.series(trace.span_s[1], outcome.trainers),
        trainers=tuple(
            TrainerEnd(
                network=network_name(t.submission.network),
                started_s=t.started_s,
                finished_s=t.finished_s,
            )
            for t in outcome.trainers
        ),
    )
