"""Storms of submissions on a large test cluster: with bftrainer, without, with jobs instead.

``Site`` is one cluster in one arm; what slurmctld says of its own load during a storm goes
out. Each has a cluster of its own because slurmctld remembers what has ended: on one that
the arms share, a cycle takes longer with every storm, and who comes second loses. Called
by ``bench_controller``. Agents and daemon are real, the trainers' workers sleep
(``scripts/workloads/light_interpreter.py``): no torch.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from _bench.sdiag import Load, parse
from _bench.waiting import BenchError, wait_until
from _bench.zero_harm import cycles
from _bench.zero_harm.arm import RESERVE, light_trainers, wait_for_nodes
from bftrainer.lab.demo.sidecar import DaemonProcess
from slurm_plugins.testcluster import ClusterConfig, SlurmTestCluster

# "jobs": sleeping jobs that Slurm may preempt, one on each node that bftrainer would have.
Arm = Literal["with", "without", "jobs"]
ARMS: tuple[Arm, ...] = ("with", "without", "jobs")
BF_INTERVAL_S = 10
ORDINARY_PARTITION, PILOT_PARTITION = "batch", "bf"  # of the test cluster
PHASE = 0.1  # of that, from a cycle's begin to the storm's: the next cycles find all of it
N_TRAINERS = 4
TENANT_NODES = 8  # of the jobs that hold what is not idle
TENANCY_S = 7200.0
COMMANDS_AT_ONCE = 8
PATIENCE_S = 180.0
# A cluster of this size starts cold in a minute; gaps here are as long as anybody likes.
# Of 63 pilots on two cores that end at once none is gone within a second: the daemon would
# back off, as it should, and there would be nothing left to measure.
POLICY = f"reserve_nodes_per_type: {RESERVE}\nmin_gap_s: 60\ngap_margin_s: 10\nharm_slo_s: 60\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large everything is."""

    n_nodes: int
    idle: int  # of these; on the others jobs run before, during and after the storms
    submissions: int  # as fast as possible, about a second
    queue: int  # jobs that wait behind one that has all idle nodes
    array: int
    window_s: float  # in which slurmctld is watched, from the storm's begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """slurmctld during one storm."""

    storm: str
    arm: Arm
    repeat: int
    submitted_in_s: float
    held: int  # nodes that trained, or had a job of arm "jobs", when it began
    load: Load
    cpu_s: float  # of slurmctld


class Site:
    """The cluster and, with bftrainer, what runs beside it; a context manager."""

    def __init__(self, scale: Scale, arm: Arm) -> None:
        self._scale = scale
        self._arm = arm
        self._tenants: set[str] = set()
        self._directory = Path(tempfile.mkdtemp(prefix="bft-ctld-", dir="/tmp"))
        self._directory.chmod(0o755)
        config = ClusterConfig(
            directory=self._directory / "c",
            n_nodes=scale.n_nodes,
            gpus_per_node=0,
            bf_interval_s=BF_INTERVAL_S,
            scheduler_parameters="bf_max_job_test=3000,default_queue_depth=1000",
            has_hook=True,
            up_timeout_s=120.0,
        )
        self._cluster = SlurmTestCluster(config)
        self._sidecar = DaemonProcess(
            self._directory / "state",
            batch_system="slurm",
            batch_options=config.batch_options(),
            policy=POLICY,
        )
        self.storms: dict[str, Callable[[], None]] = {
            f"{scale.submissions} at once": self._submissions,
            f"a queue of {scale.queue}": self._queue,
            f"an array of {scale.array:,}": self._array,
        }

    def __enter__(self) -> Self:
        self._cluster.up()
        self._put_first()
        self._occupy()
        if self._arm == "with":
            self._sidecar.start()
            for spec in light_trainers(self._directory, N_TRAINERS, self._scale.n_nodes):
                self._sidecar.client.submit(spec)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._sidecar.stop()
        self._cluster.down()
        shutil.rmtree(self._directory)

    def sample(self, storm: str, repeat: int) -> Sample:
        """Let everything settle, raise one storm and watch slurmctld."""
        held = 0 if self._arm == "without" else self._scale.idle - RESERVE
        if self._arm == "with":
            wait_for_nodes(self._sidecar, held)
        elif self._arm == "jobs":
            self._fill(held)
        log = cycles.note(self._cluster)
        time.sleep(max(0.0, cycles.at_phase(self._cluster, log, PHASE) - time.time()))
        self._command("sdiag", "--reset")
        cpu_before_s, began_s = self._cpu_s(), time.monotonic()
        self.storms[storm]()
        submitted_in_s = time.monotonic() - began_s
        time.sleep(max(0.0, self._scale.window_s - submitted_in_s))
        load, cpu_s = parse(self._command("sdiag")), self._cpu_s() - cpu_before_s
        self._clear()
        return Sample(
            storm=storm,
            arm=self._arm,
            repeat=repeat,
            submitted_in_s=submitted_in_s,
            held=held,
            load=load,
            cpu_s=cpu_s,
        )

    # -- storms ----------------------------------------------------------------------

    def _submissions(self) -> None:
        self._submit_all([(1, 2.0)] * self._scale.submissions)

    def _queue(self) -> None:
        self._cluster.submit(n_nodes=self._scale.idle, duration_s=600, limit_s=1200)
        self._submit_all([(1 + n % 4, 5.0) for n in range(self._scale.queue)])

    def _array(self) -> None:
        self._cluster.submit(
            n_nodes=1,
            duration_s=1.0,
            limit_s=60,
            extra_args=(f"--array=1-{self._scale.array}",),
        )

    def _submit_all(
        self, jobs: list[tuple[int, float]], partition: str = ORDINARY_PARTITION
    ) -> None:
        submit = partial(self._cluster.submit, partition=partition)
        with ThreadPoolExecutor(COMMANDS_AT_ONCE) as pool:
            waiting = [
                pool.submit(submit, n_nodes=n, duration_s=s, limit_s=max(60.0, s)) for n, s in jobs
            ]
            for one in waiting:
                one.result()

    # -- the cluster -----------------------------------------------------------------

    def _occupy(self) -> None:
        """Put ordinary jobs on all nodes that are not to be idle."""
        n_busy = self._scale.n_nodes - self._scale.idle
        for first in range(0, n_busy, TENANT_NODES):
            n_nodes = min(TENANT_NODES, n_busy - first)
            self._tenants.add(
                self._cluster.submit(n_nodes=n_nodes, duration_s=TENANCY_S, limit_s=TENANCY_S)
            )
        running = partial(self._listed, ORDINARY_PARTITION, "-t", "R")
        what = f"jobs on {n_busy} nodes"
        wait_until(
            lambda: self._tenants <= set(running()), what, patience_s=PATIENCE_S, interval_s=0.5
        )

    def _fill(self, n_nodes: int) -> None:
        """Put jobs of one node on so many, in the partition whose jobs give way."""
        running = partial(self._listed, PILOT_PARTITION, "-t", "R")
        self._submit_all([(1, 1800.0)] * (n_nodes - len(running())), PILOT_PARTITION)
        what = f"{n_nodes} jobs in {PILOT_PARTITION}"
        wait_until(lambda: len(running()) == n_nodes, what, patience_s=PATIENCE_S, interval_s=0.5)

    def _listed(self, partition: str, *more: str) -> list[str]:
        """Return the ids of a partition's jobs (an array that waits has one)."""
        return self._command("squeue", "-h", "-p", partition, "-o", "%A", *more).split()

    def _clear(self) -> None:
        """End the storm's jobs and wait until they are gone."""

        def is_empty() -> bool:
            listed = set(self._listed(ORDINARY_PARTITION)) - self._tenants
            if listed:
                self._cluster.command("scancel", "-f", *sorted(listed))
            return not listed

        wait_until(is_empty, "the end of the storm's jobs", patience_s=PATIENCE_S, interval_s=0.5)

    def _command(self, *argv: str) -> str:
        done = self._cluster.command(*argv)
        if not done.is_ok:
            raise BenchError(f"{argv[0]}: {done.stderr.strip()[:200]}")
        return done.stdout

    def _put_first(self) -> None:
        """Give slurmctld a processor whenever it wants one: elsewhere it has some of its own.

        Here it shares two with 64 nodes, on which agents and jobs begin and end just then. How
        long a cycle takes would say how long it waits for those.
        """
        for thread in Path(f"/proc/{self._pid()}/task").iterdir():
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))

    def _pid(self) -> int:
        return int((self._cluster.directory / "run" / "slurmctld.pid").read_text())

    def _cpu_s(self) -> float:
        """Processor time of slurmctld so far."""
        stat = Path(f"/proc/{self._pid()}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
