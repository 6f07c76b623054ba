"""The harm monitor on a real Slurm: good hand-overs, late ones, and what follows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.daemon.harm.ledger import How
from bftrainer.daemon.journal_replay import KIND, take_again
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.reports import HarmReport
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import running_cluster, set_preempt_mode
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

SLO_S = 20.0  # so that a machine that is busy with other work is not late
# Agents that are stopped are not lost: they shall say goodbye.
POLICY = f"""\
harm_slo_s: {SLO_S}
agent_timeout_s: 600
poll_interval_s: 0.3
requests_per_minute: 2000
reserve_nodes_per_type: 0
min_gap_s: 0
gap_margin_s: 0
harm_quiet_s: 600
"""


@pytest.fixture(scope="module")
def slurm_cluster() -> Iterator[SlurmTestCluster]:
    """Five nodes whose agents have time enough for a farewell."""
    with running_cluster(
        n_nodes=5,
        gpus_per_node=2,
        bf_interval_s=2,
        scheduler_parameters=FAST_CYCLE,
        kill_wait_s=30,
    ) as cluster:
        yield cluster


@pytest.fixture
def no_force(tmp_path: Path) -> Path:
    """While this file exists, the daemon's scancel takes orders and does nothing."""
    gate = tmp_path / "no-force"
    program = tmp_path / "bin" / "scancel"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n[ -e '{gate}' ] || exec {shutil.which('scancel')} \"$@\"\n")
    program.chmod(0o755)
    return gate


@pytest.fixture
def sidecar(
    slurm_cluster: SlurmTestCluster, tmp_path: Path, no_force: Path
) -> Iterator[DaemonProcess]:
    daemon = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=slurm_cluster.config.batch_options(),
        policy=POLICY,
        environment={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
    )
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.stop()


@pytest.mark.long
def test_hand_overs_are_measured_and_late_ones_answered(
    slurm_cluster: SlurmTestCluster, sidecar: DaemonProcess, no_force: Path, tmp_path: Path
) -> None:
    client = sidecar.client
    set_preempt_mode(slurm_cluster, "OFF")  # nobody but us frees a node
    trainer = client.submit(light_spec(tmp_path / "slow", n_max=5)).record.trainer_id
    wait_for(lambda: len(client.trainer(trainer).observed_nodes) == 5, what="five train")

    good = slurm_cluster.submit(n_nodes=1, duration_s=900)
    found = wait_for(lambda: _hand_overs(sidecar, 1), what="a hand-over")
    (case,) = found.worst
    assert (case.job_id, case.how, found.given_back) == (good, How.GIVEN_BACK.value, 1)
    assert case.delay_s is not None
    assert case.delay_s < SLO_S, case
    assert (found.is_kept, found.in_vain, found.preempted) == (True, 0, 0)
    started_s = wait_for(lambda: slurm_cluster.started_s(good), what="the job's first line")
    assert case.asked_s is not None
    assert started_s > case.asked_s + case.delay_s  # by the clock of the job's own first line

    # While the daemon does nothing, Slurm helps itself.
    set_preempt_mode(slurm_cluster, "CANCEL")
    os.kill(sidecar.pid, signal.SIGSTOP)
    try:
        theirs = slurm_cluster.submit(n_nodes=1, duration_s=900)
        wait_for(lambda: slurm_cluster.started_s(theirs), what="it preempts")
    finally:
        os.kill(sidecar.pid, signal.SIGCONT)
    found = wait_for(lambda: _hand_overs(sidecar, 2), what="a preemption")
    assert (found.preempted, found.preempted_jobs, found.taken) == (1, 1, 0)
    (case,) = (w for w in found.worst if w.how == How.PREEMPTED.value)
    assert case.job_id == theirs
    assert case.delay_s is not None
    assert case.delay_s < SLO_S, case  # from the signal to the farewell, by the agent's clock

    # Agents that hear nothing must be ended with force.
    set_preempt_mode(slurm_cluster, "OFF")
    for pid in _agents(sidecar):
        os.kill(pid, signal.SIGSTOP)
    no_force.touch()
    late = slurm_cluster.submit(n_nodes=3, duration_s=900)
    asked_s = wait_for(lambda: _asked_s(sidecar, late), what="nodes are given back for it")
    wait_for(lambda: time.time() > asked_s + SLO_S, what="that is late")
    no_force.unlink()
    found = wait_for(lambda: _hand_overs(sidecar, 5), what="three more")
    worst = found.worst[:3]
    assert {(w.job_id, w.n_nodes) for w in worst} == {(late, 3)}
    assert all(w.delay_s is not None and w.delay_s > SLO_S for w in worst), worst
    # Slurm continues what it ends with force, and then they hear, if they have the time.
    known = ("The agent received our order", "The agent did not report")
    assert all(w.reason.startswith(known) for w in worst), worst
    assert not found.is_kept
    assert found.back_off_level == 1
    assert found.back_off == client.status().back_off != ""
    assert "bftrainer_back_off_level 1.0" in client.metrics()
    assert 'bftrainer_hand_over_seconds_count{how="given-back"} 4.0' in client.metrics()
    assert "bftrainer_preemptions_total 1.0" in client.metrics()

    # All nodes come back; half of what was held may be taken again, and it is said why.
    done = slurm_cluster.command("scancel", good, theirs, late)
    assert done.is_ok, done.stderr
    reasons = wait_for(
        lambda: [n.reason for n in client.nodes() if "bftrainer backs off" in n.reason],
        what="nodes are left alone",
    )
    assert "it holds 2 nodes at most" in reasons[0]
    client.cancel(trainer, now=True)
    again = list(take_again(sidecar.entries(KIND)))
    assert again
    assert all(a.is_equal for a in again)  # backing off or not


def _hand_overs(sidecar: DaemonProcess, count: int) -> HarmReport | None:
    found = sidecar.client.harm(None)
    return found if found.hand_overs >= count else None


def _asked_s(sidecar: DaemonProcess, job_id: str) -> float | None:
    """When the last of three nodes was given back for a job."""
    asked_s = [
        entry.at_s
        for entry in sidecar.entries("decision")
        for release in entry.payload["plan"]["releases"]
        if release["for_job"] == job_id
    ]
    return asked_s[-1] if len(asked_s) >= 3 else None


def _agents(sidecar: DaemonProcess) -> list[int]:
    """The processes of the agents that hold a node now."""
    active = {n.pilot_id for n in sidecar.client.nodes() if n.use == "held"}
    pids = []
    for pilot_id in sorted(active):
        log = (sidecar.state_dir / "pilots" / pilot_id / "agent.log").read_text()
        (pid,) = re.findall(r"agent of \S+ on \S+, pid (\d+)", log)
        pids.append(int(pid))
    assert len(pids) == 3
    return pids
