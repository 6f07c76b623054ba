"""Delays of ordinary jobs on a real Slurm with and without pilots.

A ``Lane`` is one test cluster on which the arms take turns; lanes run side by side.
Seconds from submission to start go out. Called by ``bench_harm``.
"""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

from _bench.waiting import wait_until
from bftrainer.batch import process
from bftrainer.batch.batch_system import PilotRequest
from bftrainer.model.cluster import Job, JobState
from slurm_plugins.adapter import create
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster

Arm = Literal["pilots", "without", "control"]
BlockedArm = Literal["no pilots", "preempted by Slurm", "given back at once"]

ARMS: tuple[Arm, ...] = ("pilots", "without", "control")
BLOCKED_ARMS: tuple[BlockedArm, ...] = ("no pilots", "preempted by Slurm", "given back at once")
KINDS: dict[str, tuple[Literal["sbatch", "srun"], int]] = {
    "srun -N1": ("srun", 1),
    "srun -N4": ("srun", 4),
    "sbatch -N1": ("sbatch", 1),
}
N_NODES = 8
QUIET_S = 5.0
PATIENCE_S = 120.0

# Works a little, so that the control has a load to match; leaves at once on SIGTERM.
PILOT_SOURCE = """\
import os, signal, sys, time
share, period_s = float(sys.argv[1]), 0.05
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
while signal.sigtimedwait([signal.SIGTERM], period_s * (1 - share)) is None:
    until = time.perf_counter() + period_s * share
    while time.perf_counter() < until:
        pass
os._exit(0)
"""

_CYCLES = re.compile(r"^\s*Total cycles:\s*(\d+)", re.MULTILINE)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One ordinary job."""

    kind: str
    arm: str
    wait_s: float  # from just before the submitting command to the job's own first line


class Lane:
    """One cluster and what is on it now; a context manager."""

    def __init__(self, number: int, *, bf_interval_s: int, load: float) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"bft-harm-{number}-", dir="/tmp"))
        self._directory.chmod(0o755)
        config = ClusterConfig(
            directory=self._directory / "cluster",
            n_nodes=N_NODES,
            bf_interval_s=bf_interval_s,
        )
        self._cluster = SlurmTestCluster(config)
        self._system = create(config.batch_options())
        self._load = load
        self._outside: list[subprocess.Popen[bytes]] = []
        self._pilots = 0
        self._bf_interval_s = bf_interval_s
        self._chance = random.Random(number)  # noqa: S311 - phases, not secrets

    def __enter__(self) -> Self:
        (self._directory / "pilot.py").write_text(PILOT_SOURCE)
        self._cluster.up()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_outside()
        self._cluster.down()
        shutil.rmtree(self._directory)

    # -- a job that is first in the queue ------------------------------------------

    def sample(self, kind: str, arm: Arm) -> Sample:
        """Prepare an arm, let the scheduler come to rest, and submit one job."""
        if arm == "pilots":
            self._stop_outside()
            self._fill(self._cluster.config.node_names)
        else:
            self._release_all()
            if arm == "control":
                self._start_outside()
            else:
                self._stop_outside()
        n_pilots = N_NODES if arm == "pilots" else 0
        self._wait(lambda: self._is_settled(n_pilots), "a settled queue")
        self._wait_quiet()
        program, n_nodes = KINDS[kind]
        submitted_s = time.time()
        job_id = self._cluster.submit(n_nodes=n_nodes, duration_s=0.2, limit_s=60, kind=program)
        started_s = self._wait(lambda: self._cluster.started_s(job_id), f"start of {kind}")
        self._wait(lambda: self._cluster.ended_s(job_id), f"end of {kind}")
        return Sample(kind=kind, arm=arm, wait_s=started_s - submitted_s)

    def _wait_quiet(self) -> None:
        """Wait until no scheduler, main or backfill, has run for a while.

        A job submitted shortly after one of them ran waits for ``batch_sched_delay``,
        with pilots or without.
        """
        last: list[str] = []
        since = time.monotonic()
        # Up to a second more: Slurm's own tick is a second, and every phase shall occur.
        quiet_s = QUIET_S + self._chance.random()

        def is_quiet() -> bool:
            nonlocal last, since
            cycles = _CYCLES.findall(self._cluster.command("sdiag").stdout)
            if cycles != last:
                last, since = cycles, time.monotonic()
            return time.monotonic() - since >= quiet_s

        wait_until(is_quiet, "a quiet scheduler", patience_s=PATIENCE_S, interval_s=0.2)

    def _is_settled(self, n_pilots: int) -> bool:
        seen = self._system.snapshot()
        if seen.nodes is None or seen.jobs is None:
            return False
        states = [(job.is_ordinary, job.state) for job in seen.jobs]
        return states == [(False, JobState.RUNNING)] * n_pilots

    # -- a job that only backfill can start ----------------------------------------

    def blocked_sample(self, arm: BlockedArm, phase: float) -> Sample:
        """Block the queue with an 8-node job and submit a 4-node job that fits before it."""
        self._release_all()
        self._wait(lambda: self._is_settled(0), "an empty cluster")
        runs = self._cluster.submit(n_nodes=4, duration_s=1700, limit_s=1800)
        self._wait(lambda: self._cluster.started_s(runs), "start of the running job")
        head = self._cluster.submit(n_nodes=N_NODES, duration_s=60, limit_s=600)
        self._wait(lambda: self._job(head).planned_nodes, "a plan for the blocked job")
        if arm != "no pilots":
            taken = self._job(runs).nodes
            self._fill([n for n in self._cluster.config.node_names if n not in taken])
        self._wait_for_cycle()
        time.sleep(phase * self._bf_interval_s)
        submitted_s = time.time()
        job_id = self._cluster.submit(n_nodes=4, duration_s=0.2, limit_s=300)
        if arm == "given back at once":
            self._release_all()
        started_s = self._wait(lambda: self._cluster.started_s(job_id), "start behind the block")
        for blocker in (head, runs):
            self._cluster.cancel(blocker)
        return Sample(kind="backfill only", arm=arm, wait_s=started_s - submitted_s)

    def _job(self, job_id: str) -> Job:
        def find() -> Job | None:
            jobs = self._system.snapshot().jobs or ()
            return next((job for job in jobs if job.job_id == job_id), None)

        return self._wait(find, f"job {job_id} in the queue")

    def _wait_for_cycle(self) -> None:
        """Wait for the end of a backfill cycle, so that the phase after it is known."""

        def ended_s() -> float | None:
            cycle = self._system.snapshot().cycle
            return None if cycle is None else cycle.ended_s

        before_s = self._wait(ended_s, "a backfill cycle")
        # It passes over an unchanged queue only now and then: change something.
        self._cluster.command("scontrol", "update", "PartitionName=batch", "State=UP")
        self._wait(lambda: ended_s() != before_s, "another backfill cycle")

    # -- pilots and the load outside -------------------------------------------------

    def _fill(self, nodes: tuple[str, ...] | list[str]) -> None:
        """Put a pilot on each of these nodes that has none."""
        jobs = self._system.snapshot().jobs or ()
        held = {node for job in jobs if not job.is_ordinary for node in job.required_nodes}
        launched = []
        for node in sorted(set(nodes) - held):
            self._pilots += 1
            launched.append(
                self._system.launch_pilot(
                    PilotRequest(
                        pilot_id=f"p{self._pilots:06d}",
                        node=node,
                        time_limit_s=900,
                        agent_argv=self._pilot_argv(),
                        log_path=self._directory / "pilots.log",
                        gpus=self._cluster.config.gpus_per_node,
                    )
                )
            )
        if launched:
            self._wait(
                lambda: all(
                    seen.phase == "running" for seen in self._system.pilot_states(launched).values()
                ),
                "running pilots",
            )

    def _release_all(self) -> None:
        jobs = self._system.snapshot().jobs or ()
        self._system.cancel_pilots([job.job_id for job in jobs if not job.is_ordinary])

    def _pilot_argv(self) -> tuple[str, ...]:
        return (sys.executable, "-I", str(self._directory / "pilot.py"), str(self._load))

    def _start_outside(self) -> None:
        if not self._outside:
            self._outside = [process.spawn(self._pilot_argv()) for _ in range(N_NODES)]

    def _stop_outside(self) -> None:
        for child in self._outside:
            child.terminate()
        for child in self._outside:
            child.wait()
        self._outside = []

    def _wait(self, condition: Callable[[], T | None], what: str) -> T:
        return wait_until(condition, what, patience_s=PATIENCE_S)
