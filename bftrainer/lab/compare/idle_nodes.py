"""The arena of idle nodes: a replay of a trace with the daemon's own decisions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

from bftrainer.batch.traces import Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.lab.compare.arena import Score, completion
from bftrainer.lab.simulator.session import Choices, play
from bftrainer.lab.simulator.trainers import SimTrainer
from bftrainer.lab.workloads import Submission, TrainerWorkload

# Spot instances: a small pool whose nodes come and go within minutes.
POOL = GeneratorParameters(
    n_nodes=64, machine_nodes=64, hours=12.0, holes_per_hour=200.0, length_scale_s=300.0
)
MINUTE_S, HOUR_S = 60, 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleNodes:
    """A trace and a workload; a seed chooses nodes, start and order of submission."""

    name: str
    about: str
    trace: Fragments | None  # None: generated anew for each seed (POOL)
    workload: TrainerWorkload
    choices: Choices
    n_trainers: int | None = None  # the first of each order; None: all
    n_nodes: int = 256  # of the trace, at most
    hours: float = 24.0  # at most

    def play(self, policy: str, seed: int) -> Score:
        """Replay a part of the trace."""
        draws = random.Random(seed)  # noqa: S311 - a simulation
        trace = self._part(draws, seed)
        submissions = shuffled(self.workload, draws)[: self.n_trainers]
        outcome, metrics = play(trace, submissions, replace(self.choices, policy=policy, seed=seed))
        begin_s, end_s = trace.span_s
        mean_s, p95_s, makespan_s = completions(outcome.trainers, begin_s, end_s)
        return Score(
            jct_mean_s=mean_s,
            jct_p95_s=p95_s,
            makespan_s=makespan_s,
            utilization=metrics.utilization,
            node_h=outcome.tally.node_s_used / HOUR_S,
            fairness=metrics.jain_index,
            rescales=metrics.rescales,
            decision_ms=metrics.decision_ms_mean,
            completed=metrics.completed,
            submitted=metrics.submitted,
        )

    def _part(self, draws: random.Random, seed: int) -> Fragments:
        if self.trace is None:
            return generate(replace(POOL, seed=seed, hours=min(self.hours, POOL.hours)))
        n_nodes = min(self.n_nodes, len(self.trace.names))
        first = draws.randrange(len(self.trace.names) - n_nodes + 1)
        begin_s, end_s = self.trace.span_s
        hours = min(self.hours, (end_s - begin_s) / HOUR_S)
        spare_s = int(end_s - begin_s - hours * HOUR_S)
        start_s = begin_s + draws.randrange(0, spare_s + 1, MINUTE_S)
        return self.trace.restrict(slice(first, first + n_nodes), start_s=start_s, hours=hours)


def completions(
    trainers: Iterable[SimTrainer], begin_s: float, end_s: float
) -> tuple[float | None, float | None, float | None]:
    """Return mean and 95th percentile of completion times, and the makespan, of those that came."""
    came = [t for t in trainers if t.record.submitted_s < end_s]
    ended_s = [t.finished_s for t in came if t.finished_s is not None]
    times_s = [(t.finished_s or end_s) - t.record.submitted_s for t in came]
    mean_s, p95_s, makespan_s = completion(
        times_s, len(came), max(ended_s, default=begin_s) - begin_s
    )
    return mean_s, p95_s, makespan_s if len(ended_s) == len(came) else None


def shuffled(workload: TrainerWorkload, draws: random.Random) -> list[Submission]:
    """Return the same trainers in another order, at the same times of submission."""
    trainers = list(workload)
    times_s = [trainer.submit_s for trainer in trainers]
    draws.shuffle(trainers)
    return [replace(t, submit_s=at_s) for t, at_s in zip(trainers, times_s, strict=True)]
