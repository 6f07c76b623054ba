"""Busy machines whose gaps are about a minute, and larger ones; jobs drawn from a seed. Pure."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from bftrainer.lab.site import workload
from bftrainer.lab.site.arms import SharedStage
from bftrainer.lab.site.machine import JobSpec, SchedulerSettings

MINUTE_S: Final = 60.0
WARM_S: Final = 20 * MINUTE_S
BUSY, FULL = 0.75, 1.0  # of the node-seconds; the late ones run beyond the end
ARRAY_SHARE: Final = 0.2  # of the groups
MEDIAN_S: Final = 70.0  # of run times
SPREAD: Final = 0.8  # of their logarithm
SHORTEST_S, LONGEST_S = 5.0, 900.0
LIMIT_TIMES: Final = (2.0, 5.0)  # of the run time
USERS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallJobs:
    """A machine on which jobs of a minute or two come and go."""

    name: str
    n_nodes: int
    hours: float
    bf_interval_s: float = 30.0
    bf_duration_s: float = 0.5
    end_cost_s: float = 0.0  # of a pilot
    hello_s: float = 3.0  # of an agent, after its pilot's start
    start_s: float = 5.0  # of a worker, after that
    has_long_jobs: bool = False  # those of bench_site instead
    load: float = BUSY

    def stage(self, seed: int, policy_values: Mapping[str, Any]) -> SharedStage:
        """Return what is played with some values of the site's policy."""
        end_s = WARM_S + 3600.0 * self.hours
        phase_s = zlib.crc32(f"{self.name} {seed}".encode()) % 1000 / 1000.0 * self.bf_interval_s
        return SharedStage(
            slurm=SchedulerSettings(
                n_nodes=self.n_nodes,
                bf_interval_s=self.bf_interval_s,
                bf_duration_s=self.bf_duration_s,
                first_cycle_s=phase_s,
                end_cost_s=self.end_cost_s,
            ),
            jobs=self._jobs(seed, end_s),
            warm_s=WARM_S,
            end_s=end_s,
            hello_s=self.hello_s,
            start_s=self.start_s,
            policy_values=policy_values,
            seed=seed,
        )

    def _jobs(self, seed: int, span_s: float) -> tuple[JobSpec, ...]:
        if self.has_long_jobs:
            demand = workload.Demand(
                n_nodes=self.n_nodes, span_s=span_s, load=workload.LOAD, seed=seed
            )
            return workload.generate(demand)
        return tuple(small_jobs(self.n_nodes, span_s, self.load, seed))


def small_jobs(n_nodes: int, span_s: float, load: float, seed: int) -> Iterator[JobSpec]:
    """Yield jobs and arrays of a minute or two, 1 to all nodes wide, in order of submission."""
    chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
    groups, wanted_s = [], load * n_nodes * span_s
    while wanted_s > 0.0:
        n_tasks = chance.randint(2, 8) if chance.random() < ARRAY_SHARE else 1
        size = 1 if n_tasks > 1 else int(2 ** chance.uniform(0.0, math.log2(n_nodes) + 0.3))
        run_s = math.exp(chance.gauss(math.log(MEDIAN_S), SPREAD))
        run_s = min(LONGEST_S, max(SHORTEST_S, run_s))
        groups.append((chance.uniform(0.0, span_s), n_tasks, min(size, n_nodes), run_s))
        wanted_s -= n_tasks * groups[-1][2] * run_s
    number = 1
    for at_s, n_tasks, size, run_s in sorted(groups):
        limit_s = math.ceil(run_s * chance.uniform(*LIMIT_TIMES) / MINUTE_S) * MINUTE_S
        for task in range(n_tasks):
            yield JobSpec(
                number=number + task,
                submit_s=at_s,
                n_nodes=size,
                limit_s=limit_s,
                run_s=run_s,
                priority=0.0,
                user=f"u{chance.randrange(USERS)}",
                array=number if n_tasks > 1 else 0,
            )
        number += n_tasks


def machines() -> tuple[SmallJobs, ...]:
    """Return all machines of the benchmark."""
    busy = SmallJobs(name="16 nodes", n_nodes=16, hours=3.0)
    return (
        SmallJobs(name="8 nodes, full", n_nodes=8, hours=3.0, load=FULL),
        replace(busy, name="16 nodes, Epilog of 15 s", end_cost_s=15.0),
        replace(busy, name="16 nodes, start of 85 s", hello_s=25.0, start_s=60.0),
        SmallJobs(name="64 nodes, long jobs", n_nodes=64, hours=3.0, has_long_jobs=True),
        busy,
        replace(busy, name="16 nodes, cycle each 120 s", bf_interval_s=120.0),
        SmallJobs(name="32 nodes, full", n_nodes=32, hours=2.0, load=FULL),
        SmallJobs(name="8 nodes", n_nodes=8, hours=3.0),
    )
