"""The paper's cost model: a rescale costs samples, everything else is instantaneous.

Source: BFTrainer paper, sections 3.4 and 4.1, and its published replayer: progress is the
integral of the rate. At each event a trainer that loses nodes loses R_dw times its previous rate
in samples; one that a decision resizes loses R_up or R_dw times its previous rate (nothing from
size 0). The completion of a trainer is noticed at the next event.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from bftrainer.lab.simulator.trainers import SimTrainer, Tally
from bftrainer.lab.workloads import Submission
from bftrainer.model.decision import PilotView, Plan
from bftrainer.model.trainer import MeasuredCosts


class PaperModel:
    """Progress and costs of the trainers that may run; the base of other models."""

    claims_nodes = False  # whether a node has to be claimed before it can train
    sees_arrivals = False  # whether a trainer that arrives or completes is an event of its own

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self._now_s = -math.inf
        self._running: dict[str, SimTrainer] = {}
        self._holder: dict[str, SimTrainer] = {}

    @property
    def next_event_s(self) -> float:
        """The time of the model's own next event."""
        return math.inf

    def begin(self, now_s: float) -> None:
        """Start the clock."""
        self._now_s = now_s

    def known_costs(self, submission: Submission) -> MeasuredCosts:
        """Return the costs of a trainer's rescales, as decisions see them."""
        return MeasuredCosts(
            rescale_up_s=submission.rescale_up_s, rescale_down_s=submission.rescale_down_s
        )

    def detection_s(self) -> float:
        """Return how long it takes until a change of the pool is seen."""
        return 0.0

    def step(self) -> bool:
        """Do what is due now; return whether that calls for a decision."""
        return False

    def admit(self, trainer: SimTrainer) -> None:
        """Let a trainer take part."""
        self._running[trainer.trainer_id] = trainer

    def advance(self, now_s: float) -> None:
        """Train up to ``now_s``."""
        span_s = now_s - self._now_s
        self._now_s = now_s
        for trainer in self._running.values():
            trainer.done += span_s * trainer.rate
            trainer.node_s += span_s * len(trainer.nodes)
            self.tally.node_s_used += span_s * len(trainer.nodes)

    def lose(self, nodes: Iterable[str]) -> None:
        """Return nodes to the batch system without notice."""
        losers: dict[str, tuple[SimTrainer, float]] = {}
        for node in nodes:
            if (trainer := self._holder.pop(node, None)) is not None:
                losers.setdefault(trainer.trainer_id, (trainer, trainer.rate))
                trainer.nodes.discard(node)
        for trainer, rate in losers.values():
            fine = trainer.submission.rescale_down_s * rate
            trainer.done -= fine
            trainer.preemptions += 1
            self.tally.preemption_cost += fine

    def completed(self) -> list[SimTrainer]:
        """Remove and return the completed trainers."""
        complete = [t for t in self._running.values() if t.done >= t.submission.samples]
        self.dismiss(complete)
        return complete

    def dismiss(self, trainers: Iterable[SimTrainer]) -> None:
        """Take trainers out, complete or not."""
        for trainer in trainers:
            del self._running[trainer.trainer_id]
            for node in trainer.nodes:
                del self._holder[node]
            trainer.nodes = set()
            trainer.finished_s = self._now_s

    def apply_plan(self, plan: Plan) -> None:
        """Assign the nodes of a plan."""
        assignment = plan.assignment
        nodes_of: dict[str, set[str]] = {trainer_id: set() for trainer_id in self._running}
        for node, trainer_id in assignment.items():
            nodes_of[trainer_id].add(node)
        for trainer_id, nodes in nodes_of.items():
            trainer = self._running[trainer_id]
            if nodes == trainer.nodes:
                continue
            rescale_s = trainer.submission.rescale_down_s
            if len(nodes) > len(trainer.nodes):
                rescale_s = trainer.submission.rescale_up_s
            fine = trainer.rate * rescale_s
            trainer.done -= fine
            trainer.rescales += 1
            if trainer.started_s is None:
                trainer.started_s = self._now_s
            self.tally.rescale_cost += fine
            trainer.nodes = nodes
        self._holder = {n: self._running[t] for n, t in assignment.items()}

    def pilots(self) -> tuple[PilotView, ...]:
        """Return the pilots as the decision sees them."""
        return ()

    def speeds(self) -> Mapping[str, float]:
        """Return the slow nodes that were found, with the fraction that they reach."""
        return {}

    def training(self) -> Mapping[str, str]:
        """Return the trainer of each node whose worker trains, as the decision sees it."""
        return {node: trainer.trainer_id for node, trainer in self._holder.items()}
