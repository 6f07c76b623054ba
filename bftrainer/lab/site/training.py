"""Trainers of a workload on the nodes that ordinary jobs of a simulated machine leave idle.

The daemon's decisions and pilots are those of ``sidecar``. Trainers progress by the paper's books:
on nodes whose agent is connected and whose worker has started, less what rescales and losses cost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally, make_trainer
from bftrainer.lab.site.arms import SharedStage, mean_wait_s, run_blocks
from bftrainer.lab.site.core import EPOCH_S, Core
from bftrainer.lab.site.machine import Machine
from bftrainer.lab.site.oracle import idle_spans
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sidecar import Sidecar
from bftrainer.lab.workloads.submission import Submission


class TrainingCore(Core):
    """The decision, and the trainers that follow it."""

    def __init__(
        self,
        machine: Machine,
        submissions: Iterable[Submission],
        *,
        policy: str,
        stage: SharedStage,
        p_jmax: int,
    ) -> None:
        """Trainers are submitted from the end of the warm-up on."""
        super().__init__(machine, start_s=stage.start_s, poll_s=stage.poll_s)
        begin_s = stage.warm_s
        self._policy = load_policy(policy)
        self.settings = replace(self.settings, policy=policy, p_jmax=p_jmax)
        self.books = PaperModel(Tally())
        self.books.begin(EPOCH_S + begin_s)
        self.everybody = tuple(
            make_trainer(one, number, EPOCH_S + begin_s, self.books.known_costs(one))
            for number, one in enumerate(submissions, start=1)
        )
        self._coming = deque(self.everybody)
        self._running: list[SimTrainer] = []
        self._held: AbstractSet[str] = frozenset()

    def train(self) -> None:
        """Train until now; complete trainers leave, trainers submitted by now come."""
        now_s = EPOCH_S + self._machine.now_s
        self.books.advance(now_s)
        for trainer in self.books.completed():
            self._running.remove(trainer)
        while self._coming and self._coming[0].record.submitted_s <= now_s:
            self._running.append(self._coming.popleft())
            self.books.admit(self._running[-1])
        self._trainers = tuple([trainer.as_decided() for trainer in self._running])

    def decide(self, pilots: Iterable[Any], *, is_new: bool) -> Any:
        """Decide on the trainers as they are now."""
        self.train()
        return super().decide(pilots, is_new=is_new)

    def _training(self, held: AbstractSet[str]) -> Mapping[str, str]:
        self._held = held
        self.books.lose(self.books.training().keys() - held)
        return self.books.training()

    def _follow(self, plan: Any) -> None:
        held = {n: t for n, t in plan.assignment.items() if n in self._held}
        started = self._started(held)
        sizes = Counter(started.values())
        too_few = {r.trainer_id for r in self._trainers if sizes[r.trainer_id] < r.spec.n_min}
        assignment = {n: t for n, t in started.items() if t not in too_few}
        self.books.apply_plan(replace(plan, assignment=assignment))
        for trainer in self._running:
            trainer.dropped = plan.dropped.get(trainer.trainer_id, "")
        self._running = [t for t in self._running if not t.dropped]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of a run; times since the epoch."""

    trainers: tuple[SimTrainer, ...]
    begin_s: float
    end_s: float
    pilots: int  # requested
    pilots_trained: int  # whose node made a first step
    node_s: float  # of trainers
    idle_s: float  # node-seconds without ordinary jobs
    decisions: int
    decide_s: float  # processor time
    wait_s: float  # mean of the ordinary jobs
    blocks: tuple[tuple[float, float], ...]  # job-seconds waited, without and beside


def play(
    stage: SharedStage, submissions: Iterable[Submission], policy: str, p_jmax: int
) -> Trained:
    """Run the machine with the trainers beside it."""
    machine = Machine(stage.slurm, stage.maintenance)
    MainScheduler(machine)
    core = TrainingCore(machine, submissions, policy=policy, stage=stage, p_jmax=p_jmax)
    sidecar = Sidecar(machine, hello_s=stage.hello_s, core=core)
    backfill = Backfill(machine)
    sidecar.last_cycle = lambda: backfill.last
    machine.load(stage.jobs)
    machine.at(stage.warm_s, sidecar.begin)
    machine.run(stage.warm_s)
    blocks = tuple(run_blocks(stage, machine, backfill))
    machine.run(stage.end_s)
    core.train()
    window = (stage.warm_s, stage.end_s)
    idle = idle_spans(machine.jobs, stage.slurm.n_nodes, window, stage.maintenance)
    return Trained(
        trainers=core.everybody,
        begin_s=EPOCH_S + stage.warm_s,
        end_s=EPOCH_S + stage.end_s,
        pilots=len(sidecar.requested),
        pilots_trained=len(sidecar.trained),
        node_s=core.books.tally.node_s_used,
        idle_s=sum(to_s - from_s for spans in idle for from_s, to_s in spans),
        decisions=core.n_decisions,
        decide_s=core.cpu_s,
        wait_s=mean_wait_s(stage, machine),
        blocks=blocks,
    )
