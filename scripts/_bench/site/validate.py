"""The simulated Slurm beside a real one: the same jobs, and in which cycle each starts.

A short run on the test cluster without bftrainer; then the simulation of what was really
submitted, with the run times and the begins of cycles of the real one. A start belongs to the
backfill cycle that began last before it, whoever made it.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from _bench.site.backfill import Backfill
from _bench.site.jobs import JobSpec
from _bench.site.machine import Machine, SlurmSettings
from _bench.site.main_scheduler import MainScheduler
from _bench.targets import Target
from _bench.zero_harm import cycles
from _bench.zero_harm.arm import PHASE
from _bench.zero_harm.cells import Settings
from _bench.zero_harm.runs import JobOutcome
from _bench.zero_harm.submit import Submitter
from _bench.zero_harm.workload import Demand, PlannedJob, generate
from slurm_plugins.testcluster import SlurmTestCluster

N_NODES, BF_INTERVAL_S = 16, 10
LEAST_SAME = 0.95
MINUTE_S = 60.0  # slots of a plan begin with whole ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """A run on the test cluster; all times from a whole minute before its begin."""

    jobs: tuple[JobSpec, ...]
    starts_s: Mapping[int, float]  # by job
    cycles_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Starts of one run, real and simulated."""

    n_jobs: int
    n_same: int
    by_backfill: int  # in the simulation
    apart: tuple[tuple[int, float, float], ...]  # those that differ: job, real, simulated


def play_real(seed: int, minutes: float) -> Real:
    """Run jobs that wait for each other on a real test cluster.

    Raises:
        BenchError, BftError: it did not come to its end.
    """
    demand = Demand(
        n_jobs=round(25 * minutes), n_nodes=N_NODES, minutes=minutes, load=1.0, seed=seed
    )
    planned = generate(demand)
    directory = Path(tempfile.mkdtemp(prefix="bft-site-", dir="/tmp"))
    directory.chmod(0o755)  # ordinary users' jobs must reach the cluster's directory
    settings = Settings(name="validation", bf_interval_s=BF_INTERVAL_S)
    try:
        with SlurmTestCluster(settings.cluster(directory / "c", N_NODES, "")) as cluster:
            log = cycles.note(cluster)
            origin_s = cycles.at_phase(cluster, log, PHASE)
            outcomes, problem = Submitter(cluster, planned, origin_s).run(90.0 * minutes + 120.0)
            if problem:
                raise RuntimeError(problem)
            return _real(outcomes, planned, origin_s, log)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _real(
    outcomes: Sequence[JobOutcome], planned: Sequence[PlannedJob], origin_s: float, log: Path
) -> Real:
    began_s = origin_s // MINUTE_S * MINUTE_S - MINUTE_S
    by_slurm_s, shift_s = cycles.starts(log), origin_s - began_s
    specs, starts_s = [], {}
    for one in sorted(outcomes, key=lambda o: o.submitted_s or 0.0):
        if one.submitted_s is None or one.started_s is None or one.ended_s is None:
            continue
        number = len(specs) + 1
        specs.append(
            JobSpec(
                number=number,
                submit_s=one.submitted_s + shift_s,
                n_nodes=one.n_nodes,
                limit_s=60.0 * planned[one.number].limit_min,
                run_s=one.ended_s - one.started_s,
                kind=planned[one.number].kind,
            )
        )
        starts_s[number] = by_slurm_s.get(one.job_id, one.started_s + origin_s) - began_s
    at_s = tuple(c - began_s for c in cycles.read(log) if c >= began_s)
    return Real(jobs=tuple(specs), starts_s=starts_s, cycles_s=at_s)


def compare(real: Real) -> Beside:
    """Simulate what a real run was asked, and hold its starts against the real ones."""
    settings = SlurmSettings(n_nodes=N_NODES, bf_duration_s=0.01, cycles_s=real.cycles_s)
    machine = Machine(settings)
    MainScheduler(machine)
    Backfill(machine)
    machine.load(real.jobs)
    machine.run(max(real.starts_s.values()) + 3600.0)
    apart = [
        (job.spec.number, real.starts_s[job.spec.number], job.start_s or float("inf"))
        for job in machine.jobs
    ]
    apart = [a for a in apart if _cycle(real.cycles_s, a[1]) != _cycle(real.cycles_s, a[2])]
    return Beside(
        n_jobs=len(machine.jobs),
        n_same=len(machine.jobs) - len(apart),
        by_backfill=sum(job.by_backfill for job in machine.jobs),
        apart=tuple(apart),
    )


def _cycle(cycles_s: Sequence[float], at_s: float) -> int:
    return bisect_right(cycles_s, at_s)


def target(found: Sequence[Beside]) -> Target:
    """Return how alike the two have to be."""
    n_jobs = sum(one.n_jobs for one in found)
    return Target(
        name="start cycle as on a real Slurm",
        measured=100.0 * sum(one.n_same for one in found) / max(1, n_jobs),
        limit=100.0 * LEAST_SAME,
        relation=">=",
        unit="%",
        note=f"{n_jobs} jobs, {sum(one.by_backfill for one in found)} started by backfill",
    )
