"""A real Slurm with a daemon and a trainer on it, to which accidents happen.

The trainer counts its steps in an array that its members share: one that is lost or done twice
ends it with an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.views import StatusView, TrainerView
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import trainer_spec
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.3
requests_per_minute: 3000
min_gap_s: 0
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 0.3
hold_idle_s: 20
harm_slo_s: 60
batch_options: {command_timeout_s: 6, reservations_interval_s: 0}
"""

COUNTS = """\
import os, time
import numpy as np
from bftrainer.elastic import mpi

count = np.zeros(1, dtype=np.int64)

def step(run):
    time.sleep(0.15 / run.size)
    run.comm.Allreduce(np.ones(1), np.zeros(1))
    assert count[0] == run.step, (count[0], run.step)
    count[0] += 1

print("worker", os.getpid(), flush=True)
mpi.Run(replicated={"count": count}, batch=24).loop(step, steps=1_000_000)
"""


@dataclass(slots=True, kw_only=True)
class AccidentSite:
    """One trainer, as its user sees it, and the daemon, as its log tells it."""

    cluster: SlurmTestCluster
    sidecar: DaemonProcess
    base: Path
    trainer: str = ""
    _read: int = field(default=0)  # of the log

    @classmethod
    @contextmanager
    def open(
        cls,
        cluster: SlurmTestCluster,
        base: Path,
        *,
        state_dir: Path | None = None,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Self]:
        """Start a daemon on the cluster; at the end no pilot of it is left."""
        sidecar = DaemonProcess(
            state_dir or base / "state",
            batch_system="slurm",
            batch_options=options or cluster.config.batch_options(),
            policy=POLICY,
            environment=environment,
        )
        sidecar.log, sidecar.out = base / "daemon.log", base / "daemon.out"
        site = cls(cluster=cluster, sidecar=sidecar, base=base)
        try:
            sidecar.start()
            yield site
        finally:
            sidecar.stop()
            cluster.command("scancel", "--full", "--partition=bf")
            wait_for(lambda: not site.pilots(), what="no pilot is left")

    def trains(self, n_max: int) -> None:
        """Submit the trainer, and wait until it trains on all of its nodes."""
        spec = trainer_spec(
            self.base / "counts",
            COUNTS,
            runtime="mpi",
            epochs=None,
            n_max=n_max,
            checkpoint_interval_s=1.0,
        )
        self.trainer = self.sidecar.client.submit(spec).record.trainer_id
        self.trains_on_all(n_max)

    def view(self) -> TrainerView:
        return self.sidecar.client.trainer(self.trainer)

    def status(self) -> StatusView:
        return self.sidecar.client.status()

    def trains_on_all(self, n_nodes: int) -> None:
        """Wait until it trains on so many nodes."""

        def so_many() -> bool:
            view = self.view()
            return len(view.observed_nodes) == n_nodes == view.record.progress.size

        try:
            wait_for(so_many, what=f"it trains on {n_nodes} nodes")
        except AssertionError as late:
            nodes = self.cluster.command("sinfo", "-N", "-o", "%N %T %E").stdout
            raise AssertionError(f"{late}\n{self.status()}\n{nodes}") from late
        self.trains_on()

    def trains_on(self) -> None:
        """Wait for more samples."""
        before = self.view().record.progress.samples
        wait_for(lambda: self.view().record.progress.samples > before, what="more samples")

    def nodes(self) -> set[str]:
        """On which it trains."""
        return set(self.view().observed_nodes)

    def leaves(self, node: str) -> None:
        """Wait until it trains elsewhere."""
        wait_for(lambda: node not in self.nodes(), what=f"it leaves {node}")

    def workers(self) -> set[int]:
        """The processes that ever worked for it."""
        logs = self.sidecar.client.logs(self.trainer)
        text = "".join(Path(log.path).read_text() for log in logs)
        return set(map(int, re.findall(r"^worker ([0-9]+)$", text, re.MULTILINE)))

    def is_unharmed(self) -> None:
        """No failure is held against it, which a lost or repeated step would be."""
        record = self.view().record
        assert record.failures == 0, record.reason
        assert not record.state.is_final, record.reason

    def is_unknown(self) -> StatusView:
        """Wait until the daemon says that it does not see the cluster."""
        return wait_for(
            lambda: s if (s := self.status()).observed == "unknown" else None, what="unknown"
        )

    def is_known(self) -> None:
        """Wait until it sees the cluster again."""
        wait_for(
            lambda: (s := self.status()).observed == "present" and not s.failures, what="known"
        )

    def looks(self, more: int) -> None:
        """Wait for so many further polls."""

        def count() -> int:
            polling = self.status().polling
            return polling.looks if polling else 0

        enough = count() + more
        wait_for(lambda: count() >= enough, what="further polls")

    def requested(self) -> int:
        """How many pilots were ever asked for."""
        return sum(len(e.payload["pilot_ids"]) for e in self.sidecar.entries("pilot-requested"))

    def pilots(self, *states: str) -> dict[str, str]:
        """Job id -> node of the pilots in the queue."""
        of = (f"--states={','.join(states)}",) if states else ()
        shown = self.cluster.command("squeue", "-h", "-a", "-p", "bf", "-o", "%i %N", *of)
        assert shown.is_ok, shown.stderr
        rows = (line.partition(" ")[::2] for line in shown.stdout.splitlines())
        return dict(rows)

    def pilot_on(self, node: str) -> str:
        """The job id of the pilot there."""
        return next(job for job, where in self.pilots("RUNNING").items() if where == node)

    def starts_at_once(self, *options: str) -> None:
        """An ordinary job of one node starts as it would without us, and ends."""
        job = self.cluster.submit(n_nodes=1, duration_s=0, limit_s=60, extra_args=options)
        wait_for(lambda: self.cluster.ended_s(job), timeout_s=30, what="an ordinary job ran")

    def logged(self) -> list[str]:
        """The warnings since the last call."""
        lines = self.sidecar.log.read_text().splitlines() if self.sidecar.log.exists() else []
        new, self._read = lines[self._read :], len(lines)
        return [line for line in new if " WARNING " in line or " ERROR " in line]
