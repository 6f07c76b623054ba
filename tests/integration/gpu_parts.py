"""A real Slurm whose nodes have GPUs that are files, a daemon that lends them, and its pilots."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bftrainer.daemon.decider import DECISION
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import node_of
from bftrainer.model.views import NodeView
from milp.problem import Curve
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from slurm_plugins.testcluster.jobs import Share
from tests.integration.daemon_scripts import LIGHT, trainer_spec
from tests.integration.slurm_fixtures import daemon_on, running_cluster, set_preempt_mode
from tests.support.waiting import wait_for

CPUS_PER_GPU, MEMORY_PER_GPU_MB = 4, 4000
MOST = 12  # units of a trainer
LINEAR = Curve(sizes=(1, MOST), samples_per_s=(10.0, 10.0 * MOST))
# A worker that says which GPUs it sees, and sleeps; more of them are worth their while.
SEES = LIGHT.replace("time.sleep(0.05)", "time.sleep(2.4 / run.comm.size)").replace(
    'print("worker"', 'print("sees", os.environ.get("CUDA_VISIBLE_DEVICES"), "end");print("worker"'
)
POLICY = """\
poll_interval_s: 0.2
requests_per_minute: 100000
reserve_nodes_per_type: 0
min_gap_s: 20
gap_margin_s: 5
hold_idle_s: 0
"""


@contextlib.contextmanager
def gpu_cluster(**changes: Any) -> Iterator[SlurmTestCluster]:
    """Three nodes with four GPUs each; ``changes`` are settings of ``ClusterConfig``."""
    settings: dict[str, Any] = {
        "n_nodes": 3,
        "gpus_per_node": 4,
        "cpus_per_node": 4 * CPUS_PER_GPU,
        "memory_mb": 4 * MEMORY_PER_GPU_MB,
        "bf_interval_s": 2,
        "message_timeout_s": 5,
        "scheduler_parameters": FAST_CYCLE,
        "has_hook": True,
    }
    with running_cluster(**{**settings, **changes}) as cluster:
        yield cluster


def share_of(n_gpus: int, gpu_type: str = "") -> Share:
    """What so many GPUs are lent with, for an ordinary job."""
    return Share(
        gpus=n_gpus,
        gpu_type=gpu_type,
        cpus=n_gpus * CPUS_PER_GPU,
        memory_mb=n_gpus * MEMORY_PER_GPU_MB,
    )


@dataclass(slots=True, kw_only=True)
class Lender:
    """A daemon on such a cluster, and what it holds there."""

    cluster: SlurmTestCluster
    daemon: DaemonProcess
    directory: Path
    trainers: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)

    def trains(self, name: str, **changes: object) -> str:
        """Submit a trainer, by default of single GPUs; return its id."""
        fields = {"n_max": MOST, "curve": LINEAR, "gpus_per_unit": 1, **changes}
        spec = trainer_spec(
            self.directory / name, SEES, name=name, **{"runtime": "mpi", "epochs": None, **fields}
        )
        self.trainers.append(self.daemon.client.submit(spec).record.trainer_id)
        return self.trainers[-1]

    def starts(self, share: Share | None, *words: str, n_nodes: int = 1) -> str:
        """Submit an ordinary job and wait until it runs."""
        job = self.submits(share, *words, n_nodes=n_nodes)
        wait_for(lambda: self.cluster.started_s(job), what=f"job {job} {share} starts")
        return job

    def submits(self, share: Share | None, *words: str, n_nodes: int = 1) -> str:
        """Submit an ordinary job of somebody else."""
        job = self.cluster.submit(
            n_nodes=n_nodes, duration_s=900.0, share=share, extra_args=words, partition="batch"
        )
        self.jobs.append(job)
        return job

    def nodes(self) -> dict[str, NodeView]:
        """Return the nodes as the daemon shows them."""
        return {node.name: node for node in self.daemon.client.nodes()}

    def held(self) -> dict[str, tuple[str, int]]:
        """Return node or part, and how many of its GPUs (0: all of it), by pilot that is held."""
        pilots: dict[str, tuple[str, int]] = {}
        for node in self.nodes().values():
            if node.use == "held" and node.pilot_id:
                pilots[node.pilot_id] = node.name, 0
            for part in node.parts:
                if part.use == "held":
                    pilots[part.pilot_id] = part.name, part.gpus
        return pilots

    def gpus_held(self) -> dict[str, int]:
        """Return how many GPUs pilots hold one by one, by host."""
        counts = Counter[str]()
        for name, gpus in self.held().values():
            counts[node_of(name)] += gpus
        return dict(counts)

    def settles(self, expected: dict[str, int]) -> dict[str, tuple[str, int]]:
        """Wait until trainers train on so many GPUs of these hosts; return the pilots."""

        def trains() -> bool:
            if self.gpus_held() != expected:
                return False
            views = self.daemon.client.trainers()
            used = {name for view in views for name in view.observed_nodes}
            return used == {name for name, _ in self.held().values()}

        try:
            wait_for(trains, what=f"they train on {expected}")
        except AssertionError as problem:
            raise AssertionError(f"{problem}; {self.told()}") from problem
        return self.held()

    def told(self) -> str:
        """Return what explains a state that was not expected."""
        queue = self.cluster.command("squeue", "-a", "-o", "%i %j %T %N %b %C %m %r").stdout
        parts = [(n.name, n.use, n.reason, n.parts, n.why_whole) for n in self.nodes().values()]
        releases = [
            (release["node"], release.get("for_job"), release["reason"])
            for entry in self.daemon.entries(DECISION)
            for release in entry.payload["plan"]["releases"]
        ]
        log = self.daemon.log.read_text(errors="replace")[-3000:]
        return f"{self.gpus_held()}\n{queue}\n{parts}\n{releases}\n{log}"

    def looks(self, count: int) -> None:
        """Wait for so many further looks, and a further two scheduling cycles."""
        before, cycles = self._n_looks(), self._n_cycles()
        wait_for(lambda: self._n_looks() >= before + count, what="further looks")
        wait_for(lambda: self._n_cycles() >= cycles + 2, what="further cycles")

    def _n_looks(self) -> int:
        view = self.daemon.client.status().polling
        return view.looks if view else 0

    def _n_cycles(self) -> int:
        told = self.cluster.command("sdiag").stdout
        return sum(int(n) for n in re.findall(r"Total cycles: +([0-9]+)", told))

    def pilots_in_queue(self) -> list[str]:
        """Return the names of the pilots' jobs."""
        return self.cluster.command(
            "squeue", "-h", "-a", "-p", self.cluster.config.pilot_partition, "-o", "%j"
        ).stdout.split()

    def sees(self, trainer: str) -> list[str]:
        """Return which GPUs each worker of a trainer has seen."""
        texts = [Path(log.path).read_text() for log in self.daemon.client.logs(trainer)]
        return re.findall(r"^sees (\S+) end", "\n".join(texts), re.MULTILINE)

    def is_well(self) -> None:
        """Insist that the daemon has met no error of its own."""
        assert self.daemon.is_running()
        log = self.daemon.log.read_text(errors="replace")
        assert "Traceback" not in log, log[-4000:]
        assert "BFT-9999" not in log, log[-4000:]

    def leaves(self) -> None:
        """End everything: the trainers and the ordinary jobs."""
        for job in self.jobs:
            self.cluster.cancel(job)
        if not self.daemon.is_running():
            self.daemon.start()
        for trainer in self.trainers:
            self.daemon.client.cancel(trainer, now=True)
        wait_for(lambda: not self.pilots_in_queue(), what="no pilot is left")
        wait_for(
            lambda: not self.cluster.command("squeue", "-h", "-a").stdout, what="an empty queue"
        )


@contextlib.contextmanager
def lender(
    cluster: SlurmTestCluster, directory: Path, more: str = "", lend: str = "auto"
) -> Iterator[Lender]:
    """Run a daemon that lends GPUs; afterwards the cluster is as it was."""
    with daemon_on(cluster, directory, f"{POLICY}lend: {lend}\n{more}") as daemon:
        made = Lender(cluster=cluster, daemon=daemon, directory=directory)
        try:
            yield made
            made.is_well()
        except BaseException:
            print(made.told())  # noqa: T201 - for pytest
            raise
        finally:
            made.leaves()
            made.daemon.stop()


def quiet_gpu_cluster(**changes: Any) -> Any:
    """Return a fixture: a cluster in which nobody but us frees a GPU.

    What is given back is not left to who is faster. ``changes`` are those of ``gpu_cluster``.
    """

    @pytest.fixture(scope="module")
    def cluster() -> Iterator[SlurmTestCluster]:
        with gpu_cluster(**changes) as running:
            set_preempt_mode(running, "OFF")
            yield running

    return cluster
