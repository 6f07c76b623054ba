"""The arenas, and every policy in each: idle nodes of a trace, AdaptDL's cluster, a whole site."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import numpy as np

from bftrainer.batch.traces import Fragments
from bftrainer.batch.traces.generator import GeneratorParameters, generate
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.adaptdl.cluster import Setup
from bftrainer.lab.adaptdl.cluster import play as play_cluster
from bftrainer.lab.adaptdl.job import Application, read_applications, read_jobs
from bftrainer.lab.parallel import play_each
from bftrainer.lab.simulator.metrics import jain, static_samples
from bftrainer.lab.simulator.session import Choices, of_size, play
from bftrainer.lab.simulator.trainers import SimTrainer
from bftrainer.lab.site.cells import Cell
from bftrainer.lab.site.training import Trained
from bftrainer.lab.site.training import play as play_site
from bftrainer.lab.workloads import Submission, TrainerWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The figures of one play; None: there was nothing to average."""

    # Submission to end. Who has not ended by the end of the play counts until then, so that a
    # policy gains nothing by ending short trainers alone.
    jct_mean_s: float | None
    jct_p95_s: float | None
    makespan_s: float | None  # begin to the last end; None: not all ended
    utilization: float | None  # U; None: the arena has no reference
    node_h: float  # node-hours that trainers had (of GPUs, where a node is one)
    fairness: float | None  # Jain's index
    rescales: int
    decision_ms: float  # mean
    completed: int
    submitted: int
    job_wait_s: float | None = None  # mean of ordinary jobs; None: the arena has none
    job_wait_added: float | None = None  # of it, because of the trainers


class Arena(Protocol):
    """A workload on a machine, drawn anew for each seed. Pickled."""

    @property
    def name(self) -> str:
        """The name by which users choose it."""

    @property
    def about(self) -> str:
        """A description of what is played, one sentence."""

    def play(self, policy: str, seed: int) -> Score:
        """Play a policy; the same seed gives all policies the same.

        Raises:
            UsageError: BFT-3050, there is no such policy.
        """


def completion(
    times_s: Sequence[float], submitted: int, last_s: float
) -> tuple[float | None, float | None, float | None]:
    """Return mean and 95th percentile of completion times, and the makespan."""
    if not times_s:
        return None, None, None
    makespan_s = last_s if len(times_s) == submitted else None
    return float(np.mean(times_s)), float(np.quantile(times_s, 0.95)), makespan_s


# Spot instances: a small pool whose nodes come and go within minutes.
POOL = GeneratorParameters(
    n_nodes=64, machine_nodes=64, hours=12.0, holes_per_hour=200.0, length_scale_s=300.0
)
MINUTE_S = 60
HOUR_S = 3600.0


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


WORKLOADS = 8  # as published; a seed chooses one


@dataclass(frozen=True, slots=True, kw_only=True)
class Dedicated:
    """160 jobs on 16 nodes of 4 GPUs."""

    name: str
    about: str
    folder: Path  # of AdaptDL's data

    def play(self, policy: str, seed: int) -> Score:
        """Play a workload to its end.

        Raises:
            UsageError: BFT-3070 to 3072, data are missing.
        """
        number = (seed - 1) % WORKLOADS + 1
        jobs = read_jobs(
            self.folder / "workloads" / f"workload-{number}.csv", _applications(self.folder)
        )
        rule = load_policy(policy)
        found = play_cluster(jobs, rule, Setup(is_rigid=rule.traits.is_rigid, seed=seed))
        times_s = list(found.completion_s().values())
        ends_s = [job.ended_s for job in found.jobs if job.ended_s is not None]
        mean_s, p95_s, makespan_s = completion(
            times_s, len(jobs), float(max(ends_s, default=0) - min(j.submitted_s for j in jobs))
        )
        return Score(
            jct_mean_s=mean_s,
            jct_p95_s=p95_s,
            makespan_s=makespan_s,
            utilization=None,
            node_h=sum(job.gpu_s for job in found.jobs) / HOUR_S,
            fairness=None,
            rescales=sum(job.restarts for job in found.jobs),
            decision_ms=1e3 * found.decide_s / max(1, found.decisions),
            completed=len(times_s),
            submitted=len(jobs),
        )


@cache
def _applications(folder: Path) -> dict[str, Application]:
    return read_applications(folder)


LOAD = 0.8  # of ordinary jobs, of all nodes
WORK = 0.05  # of each trainer's samples, so that they end within hours


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
        return [of_size(one, wanted) for one in some]


def _score(found: Trained, p_jmax: int) -> Score:
    span_s = found.end_s - found.begin_s
    trainers = found.trainers
    mean_s, p95_s, makespan_s = completions(trainers, found.begin_s, found.end_s)
    reached = sum(t.processed for t in trainers)
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


Key = tuple[str, str, int]  # arena, policy, seed


def play_all(
    arenas: Sequence[Arena],
    policies: Sequence[str],
    seeds: Sequence[int],
    *,
    processes: int,
    on_progress: Callable[[float], None] = lambda _: None,
) -> dict[Key, Score]:
    """Return all scores."""
    tasks = [
        (arena.name, policy, seed) for arena in arenas for seed in seeds for policy in policies
    ]
    by_name = {arena.name: arena for arena in arenas}
    play = partial(_play, by_name)
    return play_each(play, tasks, processes=processes, on_progress=on_progress)


def _play(arenas: dict[str, Arena], key: Key) -> Score:
    name, policy, seed = key
    return arenas[name].play(policy, seed)
