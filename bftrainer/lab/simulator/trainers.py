"""The simulated trainers and their world: rates, progress, sums, idle nodes as snapshots."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from bftrainer.lab.workloads import Submission
from bftrainer.model.cluster import Node, NodeState, Snapshot
from bftrainer.model.node_request import gpus_of_type
from bftrainer.model.trainer import (
    MeasuredCosts,
    TrainerProgress,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
)
from milp.problem import Curve
from milp.tables import rates_up_to


@dataclass(slots=True, kw_only=True)
class SimTrainer:
    """One trainer during a replay."""

    submission: Submission
    record: TrainerRecord
    rates: list[float]  # samples per second by size, 0..n_max
    nodes: set[str] = field(default_factory=set)
    pace: float = 1.0  # of its slowest node; 1 unless one is slow
    reports_at: float = math.inf  # samples; a trial of a study reports there next
    done: float = 0.0  # samples, less what rescales and preemptions cost
    node_s: float = 0.0  # node-seconds attained
    started_s: float | None = None
    finished_s: float | None = None
    dropped: str = ""  # why the policy did not let it enter; "": it did
    rescales: int = 0
    preemptions: int = 0

    @property
    def trainer_id(self) -> str:
        """Its name in decisions."""
        return self.record.trainer_id

    @property
    def rate(self) -> float:
        """Samples per second at its present size."""
        return self.rates[len(self.nodes)] * self.pace

    @property
    def processed(self) -> float:
        """Samples up to its end."""
        return min(self.done, self.submission.samples)

    @property
    def goal(self) -> float:
        """Samples at which it is complete or reports."""
        return min(self.submission.samples, self.reports_at)

    def as_decided(self) -> TrainerRecord:
        """Return the record as decisions see it, with how far it has come: a step a sample."""
        size, samples = len(self.nodes), max(0, math.floor(self.done))
        progress = self.record.progress
        # The same object while it waits: most trainers do, and what is made of it is remembered.
        if (progress.size, progress.samples, progress.node_s) != (size, samples, self.node_s):
            progress = TrainerProgress(size=size, step=samples, samples=samples, node_s=self.node_s)
            self.record = replace(self.record, progress=progress)
        return self.record


def make_trainer(
    submission: Submission, number: int, begin_s: float, costs: MeasuredCosts
) -> SimTrainer:
    """Return a trainer that has not run yet; its curve and its costs are known.

    Args:
        submission: what was submitted.
        number: its place in the FCFS order.
        begin_s: of the replay, on the trace's clock.
        costs: what decisions take its rescales to cost.
    """
    spec = TrainerSpec(
        name=submission.name,
        user=submission.user,
        account=submission.account,
        script="",
        n_min=submission.n_min,
        n_max=submission.n_max,
        sizes=submission.sizes,
        curve=submission.curve,
        gres=submission.gres,
        samples=math.ceil(submission.samples),
        weight=submission.weight,
        utility=submission.utility,
    )
    record = TrainerRecord(
        trainer_id=f"t{number}",
        spec=spec,
        state=TrainerState.QUEUED,
        submitted_s=begin_s + submission.submit_s,
        costs=costs,
    )
    return SimTrainer(
        submission=submission,
        record=record,
        rates=rates_of(submission.curve, submission.n_max),
    )


def rates_of(curve: Curve, n_max: int) -> list[float]:
    """Samples per second at sizes 0..n_max, linear between the curve's points."""
    rates: list[float] = rates_up_to(curve, n_max).tolist()
    return rates


@dataclass(slots=True, kw_only=True)
class Tally:
    """The sums of a replay."""

    node_s_offered: float = 0.0  # resource integral, eq. 17 of the BFTrainer paper
    node_s_held: float = 0.0  # with a pilot of ours on it
    node_s_used: float = 0.0  # of a trainer that trains
    rescale_cost: float = 0.0  # samples not processed because of rescales
    preemption_cost: float = 0.0  # the same, because nodes were taken back
    pilots: int = 0  # requested
    pilots_trained: int = 0  # whose node made a first step
    events: int = 0
    decisions: int = 0
    decide_s: float = 0.0  # time spent deciding, by the wall clock


class World:
    """The nodes that are idle now, and our pilots on them."""

    def __init__(self, names: Sequence[str], node_types: Sequence[str] | None = None) -> None:
        self._free = {name: Node(name=name, state=NodeState.IDLE) for name in names}
        for name, node_type in zip(names, node_types or (), strict=bool(node_types)):
            self._free[name] = replace(
                self._free[name], node_type=node_type, gpus=gpus_of_type(node_type)
            )
        self._ours: dict[str, Node] = {}
        for name, node in self._free.items():
            self._ours[name] = replace(node, state=NodeState.ALLOCATED)
        self._idle: list[str] = []  # sorted
        self._unseen: dict[str, None] = {}

    def join(self, names: Iterable[str]) -> None:
        """Nodes have become idle; they are not seen yet."""
        self._unseen.update(dict.fromkeys(names))

    def leave(self, names: Iterable[str]) -> None:
        """Nodes are taken back. That shows at once: agents tell when they have to go."""
        for name in names:
            if name in self._unseen:
                del self._unseen[name]
            else:
                del self._idle[bisect_left(self._idle, name)]

    def look(self) -> None:
        """See what has become idle."""
        for name in self._unseen:
            insort(self._idle, name)
        self._unseen.clear()

    @property
    def n_idle(self) -> int:
        """The number of nodes that are idle or ours, seen or not."""
        return len(self._idle) + len(self._unseen)

    def snapshot(self, now_s: float, held_nodes: Collection[str]) -> Snapshot:
        """Return what the last look has shown; nodes that jobs use are left out."""
        free, ours = self._free, self._ours
        if held_nodes:
            nodes = tuple([(ours if name in held_nodes else free)[name] for name in self._idle])
        else:
            nodes = tuple(map(free.__getitem__, self._idle))
        return Snapshot(taken_at_s=now_s, nodes=nodes, jobs=())
