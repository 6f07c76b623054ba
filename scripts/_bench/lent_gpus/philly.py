"""Jobs of Microsoft's Philly cluster (Jeon et al., ATC 2019) → jobs of the simulated site. Pure.

The log is AdaptDL's copy, ``traces/philly.csv``: submission, run time and GPUs of 82,247 jobs from
September to December 2017; it has neither limits nor CPUs nor memory. A draw is made like this:

* A stretch of the log, another one with each seed, becomes the week that is counted. Submissions
  are drawn together or apart around the week's begin, run times stay. The factor is sought until
  the GPU-seconds that all jobs would have in that week, if each started when it is submitted, are
  the wanted share of all there are. So the runs of jobs from before the week count, and what lies
  beyond it does not: in this log 1% of the jobs run for three days and more.
* Jobs that would run when the simulation begins, some days before the week, come at its begin with
  the rest of their run.
* A job of at most as many GPUs as a node has takes them of one node, with CPUs and memory in
  proportion; a larger one takes whole nodes, as many as it needs.
* The limit is 2 to 5 times the run time, in whole minutes.
* All jobs have the same priority, so that they are tested in the order of submission.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from bftrainer.lab.site.machine import JobSpec
from bftrainer.lab.site.sharing import NodeCapacity, Share

PATH = "adaptdl-osdi21/traces/philly.csv"  # below BFTRAINER_DATA
COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
DAY_S = 86_400.0
MINUTE_S = 60.0
# In the days after the first submission: from the 1st of October 2017 on the cluster is busy, and
# for 37 days more a week can begin with which that is so to its end.
FIRST_BEGIN_DAYS, STRETCH_DAYS, BEGINS_WITHIN_DAYS = 27, 10, 37
CPUS_PER_GPU, MEMORY_PER_GPU_MB = 8, 64_000
LIMIT_FACTORS = (2.0, 5.0)  # of the run time
LEAST_FACTOR, MOST_FACTOR = 0.01, 10.0  # by which submissions are drawn together or apart
SEARCH_STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class PhillyJob:
    """A job of the log."""

    submit_s: float  # after the first submission
    run_s: float
    n_gpus: int
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekDemand:
    """The machine, and how much of it is asked for."""

    n_nodes: int
    gpus_per_node: int
    warm_s: float
    counted_s: float
    load: float  # GPU-seconds in the counted span, of all there are
    seed: int

    @property
    def end_s(self) -> float:
        """When the simulation ends."""
        return self.warm_s + self.counted_s

    @property
    def capacities(self) -> tuple[NodeCapacity, ...]:
        """The nodes."""
        node = NodeCapacity(
            cpus=CPUS_PER_GPU * self.gpus_per_node,
            memory_mb=MEMORY_PER_GPU_MB * self.gpus_per_node,
            gpus=(("", self.gpus_per_node),),
        )
        return (node,) * self.n_nodes


def read(lines: Iterable[str]) -> tuple[PhillyJob, ...]:
    """Read the log.

    Raises:
        ValueError: it has other columns, or no job.
    """
    rows = list(csv.DictReader(lines))
    if not rows or not rows[0].keys() >= set(COLUMNS):
        raise ValueError(f"a log of jobs has the columns {', '.join(COLUMNS)}")
    times_s = [datetime.fromisoformat(r["timestamp"]).replace(tzinfo=UTC).timestamp() for r in rows]
    first_s = min(times_s)
    jobs = [
        PhillyJob(
            submit_s=at_s - first_s,
            run_s=float(row["duration"]),
            n_gpus=int(row["num_gpus"]),
            user=row["cluster"],
        )
        for at_s, row in zip(times_s, rows, strict=True)
    ]
    return tuple(sorted(jobs, key=lambda job: job.submit_s))


def draw(log: Sequence[PhillyJob], demand: WeekDemand) -> tuple[JobSpec, ...]:
    """Return the jobs of a simulation, in order of submission.

    Raises:
        ValueError: the log has too few jobs there for the load, or too many.
    """
    begin_s = begin_of(demand.seed)
    factor = factor_of(log, demand, begin_s)
    chance = random.Random(demand.seed)  # noqa: S311 - a workload, not a secret
    specs: list[JobSpec] = []
    for job in log:
        limit_s = job.run_s * chance.uniform(*LIMIT_FACTORS)
        at_s = demand.warm_s + (job.submit_s - begin_s) * factor
        before_s = max(0.0, -at_s)  # so much of its run is over when the simulation begins
        if at_s >= demand.end_s or before_s >= job.run_s:
            continue
        n_nodes, share = size_of(job.n_gpus, demand.gpus_per_node)
        specs.append(
            JobSpec(
                number=len(specs) + 1,
                submit_s=max(0.0, at_s),
                n_nodes=n_nodes,
                limit_s=math.ceil((limit_s - before_s) / MINUTE_S) * MINUTE_S,
                run_s=job.run_s - before_s,
                user=job.user,
                share=share,
            )
        )
    return tuple(specs)


def begin_of(seed: int) -> float:
    """Return the time of the log at which the counted span begins; seeds count from 1."""
    shift_days = (seed - 1) * STRETCH_DAYS % BEGINS_WITHIN_DAYS
    return (FIRST_BEGIN_DAYS + shift_days) * DAY_S


def factor_of(log: Sequence[PhillyJob], demand: WeekDemand, begin_s: float) -> float:
    """Return the factor for the times between submissions at which the load is the wanted one.

    Raises:
        ValueError: there is none.
    """
    times_s = np.array([job.submit_s - begin_s for job in log])
    run_s = np.array([job.run_s for job in log])
    gpus = np.array([used_gpus(job.n_gpus, demand.gpus_per_node) for job in log])
    wanted_gpu_s = demand.load * demand.n_nodes * demand.gpus_per_node * demand.counted_s

    def asked_gpu_s(factor: float) -> float:
        from_s = times_s * factor
        within_s = np.minimum(from_s + run_s, demand.counted_s) - np.maximum(from_s, 0.0)
        return float((gpus * np.maximum(within_s, 0.0)).sum())

    low, high = LEAST_FACTOR, MOST_FACTOR
    if not asked_gpu_s(low) >= wanted_gpu_s >= asked_gpu_s(high):
        raise ValueError("the log has too few jobs for this load, or too many")
    for _ in range(SEARCH_STEPS):
        middle = math.sqrt(low * high)
        if asked_gpu_s(middle) > wanted_gpu_s:
            low = middle
        else:
            high = middle
    return high


def size_of(n_gpus: int, gpus_per_node: int) -> tuple[int, Share | None]:
    """Return the number of nodes that a job takes, and its share of each; None: all of it."""
    if n_gpus > gpus_per_node:
        return math.ceil(n_gpus / gpus_per_node), None
    share = Share(cpus=CPUS_PER_GPU * n_gpus, memory_mb=MEMORY_PER_GPU_MB * n_gpus, gpus=n_gpus)
    return 1, share


def used_gpus(n_gpus: int, gpus_per_node: int) -> int:
    """Return the GPUs that a job keeps from others."""
    n_nodes, share = size_of(n_gpus, gpus_per_node)
    return n_gpus if share else n_nodes * gpus_per_node
