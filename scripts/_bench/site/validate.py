"""The simulated Slurm beside a real one: the same jobs, and in which cycle each starts.

A short run on the test cluster without bftrainer. Then, for each of its backfill cycles, the
simulation begins with what really ran and waited when the cycle began, and is given what was
really submitted and ended until the next: a job's start cycle is the same if the simulation
starts it between the two cycles between which it really started, and in none before. (A
simulation that runs on by itself tells little: one start that differs changes all after it.)
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from _bench.targets import Target
from _bench.zero_harm import cycles
from _bench.zero_harm.arm import PHASE
from _bench.zero_harm.cells import Settings
from _bench.zero_harm.runs import JobOutcome
from _bench.zero_harm.submit import Submitter
from _bench.zero_harm.workload import Demand, PlannedJob, generate
from bftrainer.lab.site.machine import JobSpec, Machine, SchedulerSettings, SiteJob
from bftrainer.lab.site.scheduler import Backfill, MainScheduler
from bftrainer.lab.site.sharing import NodeSet
from slurm_plugins.testcluster import SlurmTestCluster

N_NODES, BF_INTERVAL_S = 16, 10
LEAST_SAME = 0.95
MINUTE_S = 60.0  # slots of a plan begin with whole ones
AFTER_S = 5.0  # the last real start: what is simulated until then counts
_PASS = re.compile(r"^\[([0-9T:.-]+)\] .*sched: Running job scheduler( )", re.MULTILINE)
_ENDED = re.compile(r"^\[([0-9T:.-]+)\] .*_job_complete: JobId=(\d+) done$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Real:
    """A run on the test cluster; all times from a whole minute before its begin."""

    jobs: tuple[JobSpec, ...]
    starts_s: Mapping[int, float]  # by job
    nodes: Mapping[int, NodeSet]
    cycles_s: tuple[float, ...]
    passes_s: tuple[float, ...]  # of the main scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Starts of one run, real and simulated."""

    n_jobs: int
    n_same: int
    by_backfill: int  # in the simulation
    apart: tuple[tuple[int, float], ...]  # those that differ: job, when it really started


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
    ends_s = {job_id: at_s for at_s, job_id in _stamps(log, _ENDED).items()}
    specs: list[JobSpec] = []
    starts_s, nodes = dict[int, float](), dict[int, NodeSet]()
    for one in sorted(outcomes, key=lambda o: o.submitted_s or 0.0):
        if one.submitted_s is None or one.started_s is None or one.ended_s is None:
            continue
        number = len(specs) + 1
        starts_s[number] = by_slurm_s.get(one.job_id, one.started_s + origin_s) - began_s
        end_s = ends_s.get(one.job_id, one.ended_s + origin_s) - began_s
        nodes[number] = sum(1 << int(name[1:]) - 1 for name in one.nodes)
        specs.append(
            JobSpec(
                number=number,
                submit_s=one.submitted_s + shift_s,
                n_nodes=one.n_nodes,
                limit_s=60.0 * planned[one.number].limit_min,
                run_s=end_s - starts_s[number],
                kind=planned[one.number].kind,
            )
        )
    at_s = tuple(c - began_s for c in cycles.read(log) if c >= began_s)
    return Real(
        jobs=tuple(specs),
        starts_s=starts_s,
        nodes=nodes,
        cycles_s=at_s,
        passes_s=tuple(sorted(p - began_s for p in _stamps(log, _PASS))),
    )


def _stamps(log: Path, what: re.Pattern[str]) -> dict[float, str]:
    """Return when something was logged (epoch), and of which job."""
    found = what.findall(log.read_text(encoding="utf-8", errors="replace"))
    return {datetime.fromisoformat(at).timestamp(): job_id for at, job_id in found}


def compare(real: Real) -> Beside:
    """Simulate each cycle of a real run, and hold the starts against the real ones."""
    same, early, by_backfill = set[int](), set[int](), 0
    spans = list(zip(real.cycles_s, (*real.cycles_s[1:], math.inf), strict=True))
    for from_s, to_s in [(0.0, real.cycles_s[0]), *spans]:
        really = {n for n, at_s in real.starts_s.items() if from_s <= at_s < to_s}
        last_s = max([real.starts_s[n] for n in really], default=from_s) + AFTER_S
        machine = _machine(real, from_s)
        machine.run(min(to_s, last_s))
        begun = {j.spec.number for j in machine.jobs if _started_since(j, from_s)}
        same |= begun & really - early
        early |= begun - really
        by_backfill += sum(j.by_backfill and j.spec.number in really for j in machine.jobs)
    apart = sorted((n, at_s) for n, at_s in real.starts_s.items() if n not in same)
    return Beside(
        n_jobs=len(real.jobs), n_same=len(same), by_backfill=by_backfill, apart=tuple(apart)
    )


def _started_since(job: SiteJob, from_s: float) -> bool:
    return job.start_s is not None and job.start_s >= from_s


def _machine(real: Real, from_s: float) -> Machine:
    """Make a machine on which runs and waits what did when a cycle began."""
    last_s = max((at_s for at_s in real.passes_s if at_s < from_s), default=0.0)
    machine = Machine(
        SchedulerSettings(
            n_nodes=N_NODES,
            bf_duration_s=0.01,
            cycles_s=(from_s,),
            has_epilog=False,
            tick_phase_s=last_s % 1.0,
        )
    )
    machine.now_s = from_s
    main = MainScheduler(machine)
    main.resume(last_s)
    for spec in real.jobs:
        start_s = real.starts_s[spec.number]
        if start_s < from_s < start_s + spec.run_s:
            machine.take_over(spec, start_s, real.nodes[spec.number])
        elif start_s >= from_s > spec.submit_s:
            machine.wait(machine.add(spec))
            if spec.kind == "sbatch" and spec.submit_s > last_s:
                main.wants_pass(is_end=False)
    machine.load(tuple(spec for spec in real.jobs if spec.submit_s >= from_s))
    Backfill(machine)
    return machine


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
