"""Trainers that lose members while the daemon is dead go on, and its heir adopts them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.demo.sidecar import DaemonProcess
from bftrainer.local.running import start_server
from bftrainer.trainer import TrainerState
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.processes import is_running
from tests.support.waiting import wait_for

POLICY = """\
poll_interval_s: 0.2
min_gap_s: 2
gap_margin_s: 1
reserve_nodes_per_type: 0
join_window_s: 2
agent_timeout_s: 4
hold_idle_s: 20
"""


class Site:
    """A daemon that can be killed, and one trainer on all its nodes."""

    def __init__(self, base: Path, sidecar: DaemonProcess, *, n_min: int, nodes: int) -> None:
        self.sidecar, self.client = sidecar, sidecar.client
        spec = trainer_spec(
            base / "trainer",
            SLOW,
            n_min=n_min,
            n_max=nodes,
            checkpoint_interval_s=600.0,
            environment=(("OMP_NUM_THREADS", "1"),),
        )
        self.trainer_id = self.client.submit(spec).record.trainer_id
        self.logs_dir = Path(spec.checkpoint_dir) / "logs"
        self.observe(nodes)
        self.checkpoints = Path(spec.checkpoint_dir)
        self.pid_of = {
            log.stem: int(log.read_text().split("worker ")[1].split()[0])
            for log in self.logs_dir.glob("*.log")
        }

    def observe(self, nodes: int) -> None:
        wait_for(
            lambda: len(self.client.trainer(self.trainer_id).observed_nodes) == nodes,
            timeout_s=90,
            what=f"{nodes} members",
        )

    def members(self) -> list[str]:
        """Worker ids in rank order, as the daemon knows them."""
        files = self.client.logs(self.trainer_id)
        ranked = sorted((f.rank, f.worker_id) for f in files if f.rank is not None)
        return [worker_id for _, worker_id in ranked]

    def says(self, worker_id: str, text: str, times: int = 1) -> None:
        log = self.logs_dir / f"{worker_id}.log"
        wait_for(
            lambda: log.read_text().count(text) >= times,
            timeout_s=60,
            what=f"{worker_id} says {text}",
        )

    def regrouped(self) -> list[dict[str, Any]]:
        return [e.plain()["what"] for e in self.sidecar.entries("regrouped")]


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[DaemonProcess]:
    server = start_server(tmp_path / "local", n_nodes=3, cycle_s=0.5)
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="local",
        batch_options={"socket": str(server.socket_path)},
        policy=POLICY,
    )
    try:
        sidecar.start()
        yield sidecar
    finally:
        try:
            sidecar.stop()
        finally:
            server.stop()


def _agent_of(worker_pid: int) -> int:
    """The agent of a worker: its template's parent."""
    pid = worker_pid
    for _ in range(2):
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid


def test_without_a_daemon_survivors_go_on_and_are_adopted(
    tmp_path: Path, sidecar: DaemonProcess
) -> None:
    site = Site(tmp_path, sidecar, n_min=1, nodes=3)
    first, second, third = site.members()
    generation = site.client.trainer(site.trainer_id).record.progress.generation
    sidecar.kill()
    os.kill(site.pid_of[third], signal.SIGKILL)
    site.says(first, f"generation {generation + 1}.1: 2 workers")
    os.kill(_agent_of(site.pid_of[first]), signal.SIGKILL)  # rank 0's node
    site.says(second, f"generation {generation + 2}.1: 1 worker,")
    wait_for(lambda: not is_running(site.pid_of[first]), what="its worker went with it")
    sidecar.start()
    wait_for(site.regrouped, timeout_s=30, what="the journal has the fact")
    (fact,) = site.regrouped()
    assert (fact["generation"], fact["size_before"], fact["size"]) == (generation + 2, 3, 1)
    assert str(fact["by"]).startswith("p")
    wait_for(
        lambda: site.client.trainer(site.trainer_id).record.progress.generation > generation + 2,
        timeout_s=60,
        what="the trainer grows again from what it had",
    )
    assert is_running(site.pid_of[second])
    assert site.client.trainer(site.trainer_id).record.state is TrainerState.RUNNING


def test_without_a_daemon_too_few_survivors_park(tmp_path: Path, sidecar: DaemonProcess) -> None:
    site = Site(tmp_path, sidecar, n_min=2, nodes=2)
    first, second = site.members()
    sidecar.kill()
    os.kill(site.pid_of[first], signal.SIGKILL)
    wait_for(lambda: not is_running(site.pid_of[second]), what="the survivor left")
    assert list(site.checkpoints.glob("step-*")), "and saved"
    sidecar.start()
    site.observe(2)  # resumed from there
