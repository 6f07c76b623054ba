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
from bftrainer.lab.papers.bftrainer.machine import MachineCount, MachineRecord, count_file
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
REPLAYER_SHARE = "replayer-share"


class ReplayerShare:
    """The published division; all nodes are of one class."""

    name = REPLAYER_SHARE
    traits = Traits(follows_curves=False)

    def allocate(self, problem: Problem, context: Context, /) -> Decided:  # noqa: ARG002
        """Divide the nodes, then assign the remainder in FCFS order."""
        handing = Handing(problem, is_spread=True)
        trainers, n_left = handing.trainers, sum(handing.counts)
        quota = n_left // max(1, len(trainers))
        sizes = [0] * len(trainers)
        for j, trainer in enumerate(trainers):
            if quota > trainer.n_min:
                sizes[j] = min(quota, handing.largest(j))
                n_left -= sizes[j]
        for j, trainer in enumerate(trainers):
            n_more = min(handing.largest(j) - sizes[j], n_left)
            if n_more > 0 and sizes[j] + n_more >= trainer.n_min:
                sizes[j] += n_more
                n_left -= n_more
        for j, size in enumerate(sizes):
            handing.take(j, size)
        return handing.answer(self.name)


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

        def aliases(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(alias[name] for name in names if name in alias)

        trainers = []
        for trainer in problem.trainers:
            current, settled = aliases(trainer.current), aliases(trainer.settled)
            trainers.append(replace(trainer, current=current, settled=settled))
        nodes = tuple(replace(node, name=alias[node.name]) for node in problem.nodes)
        renamed = replace(problem, nodes=nodes, trainers=tuple(trainers))
        decision = self._inner.allocate(renamed, context)
        name_of = {new_name: name for name, new_name in alias.items()}
        assignment = {}
        for new_name, trainer_id in decision.allocation.assignment.items():
            assignment[name_of[new_name]] = trainer_id
        return replace(decision, allocation=replace(decision.allocation, assignment=assignment))


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


def cost(run: PaperReplay | MachineCount) -> tuple[object, ...]:
    """Return what orders replays, the longest first; a count comes after everything else."""
    if isinstance(run, MachineCount):
        return (1.0,)
    hours = run.hours or (1e9 if run.is_to_the_end else 1e6)
    return (-hours, -run.p_jmax, run)  # many trainers take longest


def play_any(week: WeekOfNodes, run: PaperReplay | MachineCount) -> Record | MachineRecord | None:
    """Play a replay, or count; None where there are no two weeks and it needs them."""
    if isinstance(run, MachineCount):
        return count_file(week.two_weeks_file)
    return play(week, run)


def _policy(run: PaperReplay) -> AllocationPolicy:
    # The replayer's division is no policy for sites, so it is not an installed plug-in.
    policy: AllocationPolicy = ReplayerShare()
    if run.policy != REPLAYER_SHARE:
        policy = load_policy(run.policy)
    if run.is_any_node:
        return AnyNode(policy, seed=SEED)
    return policy


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
    ends = [
        TrainerEnd(
            network=network_name(trainer.submission.network),
            started_s=trainer.started_s,
            finished_s=trainer.finished_s,
        )
        for trainer in outcome.trainers
    ]
    return Record(run=run, metrics=measure(outcome), series=series, trainers=tuple(ends))


def _until_complete(outcome: Outcome, series: Series) -> tuple[Outcome, Series]:
    """Return what there is up to the end of the last trainer; nothing trains from then on."""
    last_s = 0.0
    for trainer in outcome.trainers:
        if trainer.finished_s is None:
            return outcome, series
        last_s = max(last_s, trainer.finished_s)
    part = series.until(last_s)
    begin_s, end_s = float(part.at_s[0]), float(part.at_s[-1])
    trace = outcome.trace.restrict(hours=(end_s - begin_s) / 3600.0)
    offered = float((part.pool * np.diff(part.at_s)).sum())
    tally = replace(outcome.tally, node_s_offered=offered, events=len(trace.pool_changes()))
    return replace(outcome, trace=trace, tally=tally), part
