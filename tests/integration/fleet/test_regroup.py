"""Trainers that lose members while the daemon is dead go on, and its heir adopts them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.model.trainer import TrainerRecord, TrainerState
from tests.integration.daemon_scripts import SLOW, trainer_spec
from tests.support.processes import is_running
from tests.support.site import Site
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


class Full:
    """A trainer on all nodes of a site."""

    def __init__(self, site: Site, *, n_min: int, nodes: int, per_node: int = 1) -> None:
        self.site = site
        spec = trainer_spec(
            site.base / "trainer",
            SLOW,
            n_min=n_min,
            n_max=nodes,
            workers_per_node=per_node,
            checkpoint_interval_s=600.0,
            environment=(("OMP_NUM_THREADS", "1"),),
        )
        self.trainer_id = site.client.submit(spec).record.trainer_id
        self.checkpoints = Path(spec.checkpoint_dir)
        site.observed(self.trainer_id, nodes)
        logs = sorted((self.checkpoints / "logs").glob("*.log"))
        self.log_of = {log.stem: log for log in logs}
        self.pid_of = {
            log.stem: int(log.read_text().split("worker ")[1].split()[0]) for log in logs
        }

    @property
    def record(self) -> TrainerRecord:
        return self.site.view(self.trainer_id).record

    def members(self) -> list[str]:
        """Worker ids in rank order, as the daemon knows them."""
        files = self.site.client.logs(self.trainer_id)
        ranked = sorted((f.rank, f.worker_id) for f in files if f.rank is not None)
        return [worker_id for _, worker_id in ranked]

    def regroups(self, worker_id: str, size: int, *, after: int) -> int:
        """Wait until a worker is in a newer generation of that size; return which one."""
        log = self.log_of[worker_id]

        def formed() -> int | None:
            found = re.findall(rf"generation (\d+)\.\d+: {size} workers?\b", log.read_text())
            return next((int(number) for number in found if int(number) > after), None)

        return wait_for(formed, what=f"{worker_id} is one of {size}")

    def regrouped(self) -> list[dict[str, Any]]:
        return [e.payload["what"] for e in self.site.sidecar.entries("regrouped")]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    # Each agent with a template of its own, which ends with it.
    with Site.open(tmp_path, n_nodes=3, policy=POLICY, options=()) as site:
        yield site


def _agent_of(worker_pid: int) -> int:
    """The agent of a worker: its template's parent."""
    pid = worker_pid
    for _ in range(2):
        stat = Path(f"/proc/{pid}/stat").read_text()
        pid = int(stat.rpartition(")")[2].split()[1])
    return pid


@pytest.mark.long
def test_without_a_daemon_survivors_go_on_and_are_adopted(site: Site) -> None:
    trainer = Full(site, n_min=1, nodes=3)
    first, second, third = trainer.members()
    generation = trainer.record.progress.generation
    site.sidecar.kill()
    os.kill(trainer.pid_of[third], signal.SIGKILL)
    second_generation = trainer.regroups(first, 2, after=generation)
    os.kill(_agent_of(trainer.pid_of[first]), signal.SIGKILL)  # rank 0's node
    third_generation = trainer.regroups(second, 1, after=second_generation)
    wait_for(lambda: not is_running(trainer.pid_of[first]), what="its worker went with it")
    site.sidecar.start()
    (fact,) = wait_for(trainer.regrouped, what="the journal has the fact")
    assert (fact["generation"], fact["size_before"], fact["size"]) == (third_generation, 3, 1)
    assert str(fact["by"]).startswith("p")
    wait_for(
        lambda: trainer.record.progress.generation > third_generation,
        what="the trainer grows again from what it had",
    )
    assert is_running(trainer.pid_of[second])
    assert trainer.record.state is TrainerState.RUNNING


@pytest.mark.long
def test_without_a_daemon_a_node_with_a_dead_worker_is_left_behind(site: Site) -> None:
    trainer = Full(site, n_min=1, nodes=3, per_node=2)
    workers = trainer.members()
    pids = [trainer.pid_of[w] for w in workers]
    generation = trainer.record.progress.generation
    site.sidecar.kill()
    os.kill(pids[5], signal.SIGKILL)  # the second of the third node
    smaller = trainer.regroups(workers[0], 4, after=generation)
    wait_for(lambda: not is_running(pids[4]), what="its neighbour went with it")
    assert all(is_running(pid) for pid in pids[:4])
    site.sidecar.start()
    (fact,) = wait_for(trainer.regrouped, what="the journal has the fact")
    assert (fact["generation"], fact["size_before"], fact["size"]) == (smaller, 3, 2)
    wait_for(
        lambda: trainer.record.progress.generation > smaller,
        what="the trainer grows again from what it had",
    )
    assert all(is_running(pid) for pid in pids[:4])


@pytest.mark.long
def test_without_a_daemon_too_few_survivors_park(site: Site) -> None:
    trainer = Full(site, n_min=2, nodes=2)
    first, second = trainer.members()
    site.sidecar.kill()
    os.kill(trainer.pid_of[first], signal.SIGKILL)
    wait_for(lambda: not is_running(trainer.pid_of[second]), what="the survivor left")
    assert list(trainer.checkpoints.glob("step-*")), "and saved"
    site.sidecar.start()
    site.observed(trainer.trainer_id, 2)  # resumed from there
