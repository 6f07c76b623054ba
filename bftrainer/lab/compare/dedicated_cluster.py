"""The arena of a dedicated cluster: AdaptDL's 64 GPUs and its workloads (``simulate.adaptdl``)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.adaptdl.application import Application, read_applications
from bftrainer.lab.adaptdl.cluster import Setup, play
from bftrainer.lab.adaptdl.job import read_jobs
from bftrainer.lab.compare.arena import Score, completion

WORKLOADS = 8  # as published; a seed chooses one
HOUR_S = 3600


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
        found = play(jobs, rule, Setup(is_rigid=rule.traits.is_rigid, seed=seed))
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
