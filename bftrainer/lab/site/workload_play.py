"""The trainers of a workload on a simulated machine, with bftrainer's decisions.

They progress by the paper's books: on nodes whose agent is connected and whose worker has started,
less what rescales and losses cost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.paper import PaperModel
from bftrainer.lab.simulator.trainers import SimTrainer, Tally, make_trainer
from bftrainer.lab.site.arms import ArmOutcome, Harvest, SharedStage, play_beside
from bftrainer.lab.site.looks import EPOCH_S
from bftrainer.lab.site.machine import Machine
from bftrainer.lab.site.sidecar import Core
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import PilotView, Plan


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
        everybody = []
        for number, submission in enumerate(submissions, start=1):
            costs = self.books.known_costs(submission)
            everybody.append(make_trainer(submission, number, EPOCH_S + begin_s, costs))
        self.everybody = tuple(everybody)
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

    def decide(self, pilots: Sequence[PilotView], *, is_new: bool) -> Plan:
        """Decide on the trainers as they are now."""
        self.train()
        return super().decide(pilots, is_new=is_new)

    def _training(self, held_nodes: AbstractSet[str]) -> Mapping[str, str]:
        self._held = held_nodes
        self.books.lose(self.books.training().keys() - held_nodes)
        return self.books.training()

    def _step(self) -> None:
        """Do nothing: these trainers tell how far they have come."""

    def _follow(self, plan: Plan) -> None:
        on_held_nodes = {n: t for n, t in plan.assignment.items() if n in self._held}
        started = self._started(on_held_nodes)
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
    node_s: float  # of trainers
    arm: ArmOutcome
    harvest: Harvest


def play(
    stage: SharedStage, submissions: Iterable[Submission], policy: str, p_jmax: int
) -> Trained:
    """Run the machine with the trainers beside it."""
    machine = Machine(stage.slurm, stage.maintenance)
    core = TrainingCore(machine, submissions, policy=policy, stage=stage, p_jmax=p_jmax)
    arm, harvest = play_beside(stage, machine, core)
    core.train()
    return Trained(
        trainers=core.everybody,
        begin_s=EPOCH_S + stage.warm_s,
        end_s=EPOCH_S + stage.end_s,
        node_s=core.books.tally.node_s_used,
        arm=arm,
        harvest=harvest,
    )
