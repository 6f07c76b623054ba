"""One replay of section 5: its setting, its policies and its record.

Setting and record are plain data, because replays are played in several processes. Two policies are
this paper's alone: its published equal share, and sizes on nodes drawn at random.

Source: the heuristic baseline of the replayer published with the paper
(github.com/dummy4binary/BFTrainer-Log-Replayer, prog.py). Every trainer gets N // J nodes, or none
if that is not more than its n_min; the remainder goes to the first trainer up to its n_max, then
to the next. The paper says only that the baseline "distributes nodes equally", which is what the
policy ``equal-share`` does.

The paper's node-level program has no reason to prefer one of several equal nodes; our policies
choose by name. Neighbours by name often leave together, so fewer trainers lose nodes. The policy
with nodes drawn at random measures the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Traits,
    load_policy,
)
from bftrainer.decide.policies.distribution import Handing
from bftrainer.lab.papers.bftrainer.scenario import (
    WeekOfNodes,
    first_hours,
    network_name,
    workload_of,
)
from bftrainer.lab.papers.bftrainer.series import PlanRecorder, Series
from bftrainer.lab.simulator.metrics import Metrics, measure
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.replay import Outcome, Replay
from bftrainer.lab.simulator.session import Choices, settings_of
from bftrainer.lab.simulator.trainers import Tally
from milp.problem import Objective, Problem

SEED = 1


class ReplayerShare:
    """The published division; all nodes are of one class."""

    name = "replayer-share"
    traits = Traits(follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Divide the nodes, then assign the remainder in FCFS order."""
        handing = Handing(problem, is_spread=True)
        trainers, left = handing.trainers, sum(handing.counts)
        quota = left // max(1, len(trainers))
        sizes = []
        for j, trainer in enumerate(trainers):
            sizes.append(min(quota, handing.largest(j)) if quota > trainer.n_min else 0)
            left -= sizes[-1]
        for j, trainer in enumerate(trainers):
            more = min(handing.largest(j) - sizes[j], left)
            if more > 0 and sizes[j] + more >= trainer.n_min:
                sizes[j] += more
                left -= more
        for j, size in enumerate(sizes):
            handing.take(j, size)
        return handing.answer(self.name)


POLICY: AllocationPolicy = ReplayerShare()


class AnyNode:
    """Wraps a policy; the same seed draws the same nodes."""

    def __init__(self, inner: AllocationPolicy, *, seed: int) -> None:
        self._inner = inner
        self._chance = np.random.Generator(np.random.PCG64(seed))

    @property
    def name(self) -> str:
        """The wrapped policy's name, marked."""
        return f"{self._inner.name}, any node"

    @property
    def traits(self) -> Traits:
        """The wrapped policy's."""
        return self._inner.traits

    def allocate(self, problem: Problem, context: Context, /) -> Decided:
        """Decide on renamed nodes, and restore the names in the answer."""
        numbers = self._chance.permutation(len(problem.nodes)).tolist()
        alias = {
            node.name: f"{number:07d}" for node, number in zip(problem.nodes, numbers, strict=True)
        }
        trainers = tuple(
            replace(
                trainer,
                current=tuple(alias[name] for name in trainer.current if name in alias),
                settled=tuple(alias[name] for name in trainer.settled if name in alias),
            )
            for trainer in problem.trainers
        )
        nodes = tuple(replace(node, name=alias[node.name]) for node in problem.nodes)
        found = self._inner.allocate(replace(problem, nodes=nodes, trainers=trainers), context)
        own = {other: name for name, other in alias.items()}
        nodes_of = found.allocation.assignment
        assignment = {own[node]: trainer for node, trainer in nodes_of.items()}
        return replace(found, allocation=replace(found.allocation, assignment=assignment))


REPLAYER_SHARE = POLICY.name


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
    is_to_the_end: bool = False  # beyond the scenario, until all trainers are complete
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
    policy = POLICY if is_replayers else load_policy(run.policy)
    return AnyNode(policy, seed=SEED) if run.is_any_node else policy


def play(week: WeekOfNodes, run: PaperReplay) -> Record | None:
    """Play one replay; None of one to the end where the scenario is all there is."""
    trace = week.to_the_end if run.is_to_the_end else week.trace
    if trace is None:
        return None
    if run.hours is not None:
        trace = first_hours(trace, run.hours)
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
    series = watch.series(trace.span_s[1], outcome.trainers)
    if run.is_to_the_end:
        outcome, series = _until_complete(outcome, series)
    return Record(
        run=run,
        metrics=measure(outcome),
        series=series,
        trainers=tuple(
            TrainerEnd(
                network=network_name(t.submission.network),
                started_s=t.started_s,
                finished_s=t.finished_s,
            )
            for t in outcome.trainers
        ),
    )


def _until_complete(outcome: Outcome, series: Series) -> tuple[Outcome, Series]:
    """Return what there is up to the end of the last trainer; nothing trains from then on."""
    ends_s = [trainer.finished_s for trainer in outcome.trainers]
    complete_s = [end_s for end_s in ends_s if end_s is not None]
    if len(complete_s) < len(ends_s):
        return outcome, series
    part = series.until(max(complete_s))
    begin_s, end_s = float(part.at_s[0]), float(part.at_s[-1])
    trace = outcome.trace.restrict(hours=(end_s - begin_s) / 3600.0)
    offered = float((part.pool * np.diff(part.at_s)).sum())
    tally = replace(outcome.tally, node_s_offered=offered, events=len(trace.pool_changes()))
    return replace(outcome, trace=trace, tally=tally), part
