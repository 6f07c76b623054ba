"""What a daemon asks of a real controller, by our count and by Slurm's own."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from bftrainer.batch.rate_limit import LOOK_REQUESTS
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.views import PollingView
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import cluster_with
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

N_NODES = 2
POLICY = "reserve_nodes_per_type: 0\nmin_gap_s: 30\ngap_margin_s: 5\n"
RPCS = {"nodes": "REQUEST_NODE_INFO", "jobs": "REQUEST_JOB_INFO"}
_RPC = re.compile(r"^\s+(REQUEST_\w+)\s+\(\s*\d+\) count:(\d+)", re.MULTILINE)


# The nodes tell of jobs, if somebody wants to hear it.
cluster = cluster_with(n_nodes=N_NODES, has_hook=True, scheduler_parameters=FAST_CYCLE)


def daemon(cluster: SlurmTestCluster, folder: Path, policy: str, *, hook: bool) -> DaemonProcess:
    return DaemonProcess(
        folder / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(is_told=hook),
        policy=POLICY + policy,
    )


def polling(sidecar: DaemonProcess) -> PollingView:
    view = sidecar.client.status().polling
    assert view is not None
    return view


def asked(view: PollingView) -> dict[str, int]:
    return {request.kind: request.total for request in view.requests}


def answered(cluster: SlurmTestCluster) -> dict[str, int]:
    """Requests of each kind that the controller itself has counted."""
    text = cluster.command("sdiag").stdout
    _, _, by_type = text.partition("statistics by message type")
    return {kind: int(count) for kind, count in _RPC.findall(by_type.partition("by user")[0])}


def wait_looks(sidecar: DaemonProcess, more: int) -> PollingView:
    wanted = polling(sidecar).looks + more
    return wait_for(
        lambda: v if (v := polling(sidecar)).looks >= wanted else None,
        what=f"{more} looks",
    )


def assert_within(budget: int, sidecar: DaemonProcess, looks: int) -> PollingView:
    """Let it look so often; by then it has asked no more than the budget allows."""
    first_s = time.monotonic()  # sooner than any look began that ``first`` does not show
    first = wait_looks(sidecar, 1)
    view = wait_looks(sidecar, looks)
    spent = sum(asked(view).values()) - sum(asked(first).values())
    assert spent <= budget * (time.monotonic() - first_s) / 60 + LOOK_REQUESTS
    return view


@pytest.mark.long
def test_with_the_hook_a_quiet_cluster_costs_next_to_nothing(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    budget = 120
    # As often as the budget allows, so that it is the budget that holds it back.
    policy = f"poll_interval_with_hook_s: 0.2\nrequests_per_minute_with_hook: {budget}\n"
    sidecar = daemon(cluster, tmp_path, f"poll_interval_s: 0.2\n{policy}", hook=True)
    before = answered(cluster)
    try:
        sidecar.start()
        view = assert_within(budget, sidecar, 6)
        assert (view.mode, view.requests_per_minute) == ("hook", budget)
        assert "cycle" not in asked(view), "nothing waits for one"
        assert_slurm_counts_the_same(cluster, sidecar, before)
    finally:
        sidecar.stop()


def assert_slurm_counts_the_same(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, before: dict[str, int]
) -> None:
    """Slurm soon counts what the daemon has counted, and never more; looks go on meanwhile."""
    sooner = asked(polling(sidecar))

    def theirs() -> dict[str, int] | None:
        now = answered(cluster)
        found = {kind: now.get(rpc, 0) - before.get(rpc, 0) for kind, rpc in RPCS.items()}
        return found if all(found[kind] >= sooner[kind] for kind in RPCS) else None

    found = wait_for(theirs, what=f"{sooner} counted by Slurm")
    later = asked(polling(sidecar))  # each is counted before it is asked
    assert all(found[kind] <= later[kind] for kind in RPCS), (found, later)


def test_a_burst_of_jobs_gets_one_look(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    # No look is due by itself: none can be taken for one that was called for.
    policy = "poll_interval_s: 0.2\npoll_interval_with_hook_s: 3600\n"
    sidecar = daemon(cluster, tmp_path, policy, hook=True)
    try:
        sidecar.start()
        wait_for(lambda: polling(sidecar).looks, what="the first look")
        before = polling(sidecar).called_looks
        os.kill(sidecar.pid, signal.SIGSTOP)  # it hears of all at once, however long they take
        try:
            submit_held(cluster, 5)
        finally:
            os.kill(sidecar.pid, signal.SIGCONT)
        wait_for(lambda: polling(sidecar).called_looks > before, what="the burst is looked at")
        assert sidecar.client.status().observed == "present"
        # By the time that the next one is looked at, the burst has had all of its looks.
        submit_held(cluster, 1)
        wait_for(lambda: polling(sidecar).called_looks > before + 1, what="so is the next job")
        assert polling(sidecar).called_looks == before + 2
    finally:
        sidecar.stop()
        wait_for_idle(cluster)


def submit_held(cluster: SlurmTestCluster, count: int) -> None:
    """Submit jobs of which none starts or ends."""
    for _ in range(count):
        cluster.submit(n_nodes=1, duration_s=1, limit_s=60, extra_args=("--hold",))


@pytest.mark.long
def test_without_it_the_budget_is_kept_and_sdiag_asked_only_while_something_waits(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    budget = 300
    policy = f"poll_interval_s: 0.1\nrequests_per_minute: {budget}\n"
    sidecar = daemon(cluster, tmp_path, policy, hook=False)

    try:
        sidecar.start()
        view = assert_within(budget, sidecar, 9)
        assert (view.mode, view.called_looks) == ("polling", 0)
        assert "cycle" not in asked(view)
        # A claim waits for Slurm's pass over the queue, until its pilot has started.
        spec = light_spec(tmp_path / "slow", n_max=N_NODES)
        trainer = sidecar.client.submit(spec).record.trainer_id
        wait_held(sidecar)
        assert asked(polling(sidecar)).get("cycle", 0) >= 1
        assert asked(polling(sidecar))["submit"] == N_NODES
        settled = asked(wait_looks(sidecar, 2))["cycle"]
        assert asked(wait_looks(sidecar, 6))["cycle"] == settled
        sidecar.client.cancel(trainer, now=True)
    finally:
        sidecar.stop()
        wait_for_idle(cluster)


@pytest.mark.long
def test_a_pilot_that_does_not_listen_is_cancelled(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    sidecar = daemon(cluster, tmp_path, "agent_timeout_s: 60\nhold_idle_s: 0.1\n", hook=True)
    try:
        sidecar.start()
        spec = light_spec(tmp_path / "slow", n_max=N_NODES)
        trainer = sidecar.client.submit(spec).record.trainer_id
        wait_held(sidecar)
        assert "cancel" not in asked(polling(sidecar))
        logs = (tmp_path / "state" / "pilots").glob("p*/agent.log")
        pids = [int(re.findall(r", pid (\d+)", log.read_text())[0]) for log in logs]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        sidecar.client.cancel(trainer, now=True)
        # Nobody wants the nodes any more, and the agents do not read that they shall leave.
        wait_for(lambda: asked(polling(sidecar)).get("cancel"), what="they are cancelled")
        wait_for(
            lambda: cluster.command("squeue", "-h", "-a").stdout == "",
            what="no pilot is left",
        )
    finally:
        sidecar.stop()
        wait_for_idle(cluster)


def wait_held(sidecar: DaemonProcess) -> None:
    wait_for(
        lambda: sidecar.client.status().nodes_held == N_NODES,
        what="all nodes are held",
    )


def wait_for_idle(cluster: SlurmTestCluster) -> None:
    """Leave an empty cluster to the next test."""
    ids = cluster.command("squeue", "-h", "-a", "-o", "%A").stdout.split()
    if ids:
        cluster.command("scancel", "-f", *ids)
    wait_for(
        lambda: cluster.command("squeue", "-h", "-a").stdout == "",
        what="an empty queue",
    )
