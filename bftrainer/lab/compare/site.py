"""The arena of a whole site: trainers beside a simulated Slurm with ordinary jobs."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.compare.arena import Score
from bftrainer.lab.compare.idle_nodes import completions, shuffled
from bftrainer.lab.simulator.metrics import jain, static_samples
from bftrainer.lab.site.cells import Cell
from bftrainer.lab.site.training import Trained
from bftrainer.lab.site.training import play as play_site
from bftrainer.lab.workloads import Submission, TrainerWorkload

LOAD = 0.8  # of ordinary jobs, of all nodes
WORK = 0.05  # of each trainer's samples, so that they end within hours
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A machine with ordinary jobs; a seed chooses these and the order of the trainers."""

    name: str
    about: str
    workload: TrainerWorkload
    n_trainers: int
    p_jmax: int
    n_nodes: int
    hours: float

    def play(self, policy: str, seed: int) -> Score:
        """Play a site."""
        cell = Cell(
            bf_interval_s=30.0,
            bf_duration_s=0.5,
            n_nodes=self.n_nodes,
            hours=self.hours,
            warm_s=HOUR_S,
            load=LOAD,
        )
        found = play_site(cell.stage(seed), self._submitted(policy, seed), policy, self.p_jmax)
        return _score(found, self.p_jmax)

    def _submitted(self, policy: str, seed: int) -> list[Submission]:
        """Return the trainers; for a rigid policy each has one size, as in a replay."""
        draws = random.Random(seed)  # noqa: S311 - a simulation
        some = [
            replace(one, samples=one.samples * WORK)
            for one in shuffled(self.workload, draws)[: self.n_trainers]
        ]
        if not load_policy(policy).traits.is_rigid:
            return some
        wanted = max(1, round((1.0 - LOAD) * self.n_nodes / self.p_jmax))
        sizes = [max(one.n_min, min(one.n_max, wanted)) for one in some]
        return [replace(one, n_min=n, n_max=n) for one, n in zip(some, sizes, strict=True)]


def _score(found: Trained, p_jmax: int) -> Score:
    span_s = found.end_s - found.begin_s
    trainers = found.trainers
    mean_s, p95_s, makespan_s = completions(trainers, found.begin_s, found.end_s)
    reached = sum(min(t.done, t.submission.samples) for t in trainers)
    static = static_samples(trainers, found.idle_s / span_s, p_jmax, span_s)
    without_s = sum(before_s for before_s, _ in found.blocks)
    beside_s = sum(after_s for _, after_s in found.blocks)
    return Score(
        jct_mean_s=mean_s,
        jct_p95_s=p95_s,
        makespan_s=makespan_s,
        utilization=reached / static if static else 0.0,
        node_h=found.node_s / HOUR_S,
        fairness=jain(trainers, found.end_s),
        rescales=sum(t.rescales for t in trainers),
        decision_ms=1e3 * found.decide_s / max(1, found.decisions),
        completed=sum(t.finished_s is not None for t in trainers),
        submitted=len(trainers),
        job_wait_s=found.wait_s,
        job_wait_added=beside_s / without_s - 1.0 if without_s else None,
    )
