"""Submits the jobs of a workload at their instants and learns what became of each.

A cluster, the jobs and the moment of the start come in; ``JobOutcome``s go out. One thread
keeps time and hands each job to a pool, so that a slow command delays nobody else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from _bench.real_slurm.workload import PlannedJob
from bftrainer.model.errors import BatchSystemError
from slurm_plugins.testcluster import SlurmTestCluster

COMMANDS_AT_ONCE = 6
LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one ordinary job; its place in the workload is its identity.

    Times are seconds after the start of the run, by the job's own clock.
    """

    number: int
    n_nodes: int
    planned_s: float
    submitted_s: float | None = None
    job_id: str = ""
    started_s: float | None = None
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()
    refused: str = ""  # Slurm's words: an immediate job that found no node


class Submitter:
    """One workload on one cluster."""

    def __init__(
        self, cluster: SlurmTestCluster, jobs: Sequence[PlannedJob], origin_s: float
    ) -> None:
        self._cluster = cluster
        self._jobs = jobs
        self._origin_s = origin_s
        self._srun = threading.Lock()  # the cluster's list of waiting sruns is not for threads

    def run(self, deadline_s: float) -> tuple[tuple[JobOutcome, ...], str]:
        """Submit everything and wait for every end; outcomes, and what is wrong or ''.

        Args:
            deadline_s: after the start of the run; later jobs are given up.
        """
        futures: list[Future[JobOutcome]] = []
        with ThreadPoolExecutor(COMMANDS_AT_ONCE, "submit") as pool:
            # A job is its place in the workload; jittered jobs may come in another order.
            for number, job in sorted(enumerate(self._jobs), key=lambda pair: pair[1].at_s):
                time.sleep(max(0.0, self._origin_s + job.at_s - time.time()))
                futures.append(pool.submit(self._submit, number, job))
            outcomes = [future.result() for future in futures]
        while True:
            outcomes = [self._look(outcome) for outcome in outcomes]
            waiting = [o.number for o in outcomes if not o.refused and o.ended_s is None]
            if not waiting:
                return tuple(outcomes), ""
            if time.time() > self._origin_s + deadline_s:
                return tuple(outcomes), f"{len(waiting)} jobs had not ended in time"
            time.sleep(LOOK_S)

    def _submit(self, number: int, job: PlannedJob) -> JobOutcome:
        submitted_s = time.time() - self._origin_s
        job_id = refusal = ""
        try:
            job_id = self._ask(job)
        except BatchSystemError as problem:
            refusal = problem.cause
        return JobOutcome(
            number=number,
            n_nodes=job.n_nodes,
            planned_s=job.at_s,
            submitted_s=submitted_s,
            job_id=job_id,
            refused=refusal,
        )

    def _ask(self, job: PlannedJob) -> str:
        limit_s = 60.0 * job.limit_min
        if job.kind == "sbatch":
            return self._cluster.submit(n_nodes=job.n_nodes, duration_s=job.run_s, limit_s=limit_s)
        at_once = ("--immediate",) if job.kind == "immediate" else ()
        with self._srun:
            return self._cluster.submit(
                n_nodes=job.n_nodes,
                duration_s=job.run_s,
                limit_s=limit_s,
                kind="srun",
                extra_args=at_once,
            )

    def _look(self, outcome: JobOutcome) -> JobOutcome:
        if outcome.refused or outcome.ended_s is not None:
            return outcome
        started_s = self._cluster.started_s(outcome.job_id)
        ended_s = self._cluster.ended_s(outcome.job_id)
        return JobOutcome(
            number=outcome.number,
            n_nodes=outcome.n_nodes,
            planned_s=outcome.planned_s,
            submitted_s=outcome.submitted_s,
            job_id=outcome.job_id,
            started_s=None if started_s is None else started_s - self._origin_s,
            ended_s=None if ended_s is None else ended_s - self._origin_s,
            nodes=self._cluster.jobs.noted_nodes(outcome.job_id),
        )
