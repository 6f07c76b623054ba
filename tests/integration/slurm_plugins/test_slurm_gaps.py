"""Plans of a real Slurm: what is read of them, and what becomes of pilots when they move."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.decide.queue.models import PrintedQueue
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.census import census_of
from bftrainer.model.cluster import Job, JobState, NodeState, Snapshot
from bftrainer.model.queue import Then
from slurm_plugins.adapter import SlurmBatchSystem, create
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import cluster_with, daemon_on, whole_look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

MARGIN_S = 120


# It plans half a day ahead.
cluster = cluster_with(
    n_nodes=4,
    bf_interval_s=2,
    message_timeout_s=5,
    scheduler_parameters=f"{FAST_CYCLE},bf_window=720",
)


@pytest.fixture(scope="module")
def system(cluster: SlurmTestCluster) -> SlurmBatchSystem:
    return create({**cluster.config.batch_options(), "reservations_interval_s": 0})


def _job(seen: Snapshot, job_id: str) -> Job | None:
    return next((j for j in seen.jobs or () if j.job_id == job_id), None)


def _planned(system: SlurmBatchSystem, job_id: str, before_s: float) -> Job | None:
    """The job as soon as it is planned to start before that."""
    job = _job(system.snapshot(), job_id)
    return job if job and job.start_s is not None and job.start_s < before_s else None


def _gone(system: SlurmBatchSystem, *job_ids: str) -> bool:
    seen = system.snapshot()
    return seen.jobs is not None and all(_job(seen, i) is None for i in job_ids)


def _is_empty(system: SlurmBatchSystem) -> bool:
    return all(n.state is NodeState.IDLE for n in whole_look(system).nodes or ())


def _run_for(cluster: SlurmTestCluster, job_id: str, left_s: float) -> None:
    """Change a running job's limit so that at least this much of it is left."""
    shown = cluster.command("squeue", "-h", "-j", job_id, "-o", "%M").stdout.strip()
    minutes, _, seconds = shown.rpartition(":")
    run_s = 60 * int(minutes or 0) + int(seconds)
    limit_min = int((run_s + left_s) // 60) + 1
    done = cluster.command("scontrol", "update", f"JobId={job_id}", f"TimeLimit={limit_min}")
    assert done.is_ok, done.stderr


def test_what_slurm_tells_of_its_plans(cluster: SlurmTestCluster, system: SlurmBatchSystem) -> None:
    make = ("scontrol", "create", "reservation", "users=root", "duration=60")
    cluster.command(*make, "ReservationName=m", "flags=maint", "starttime=now+2hours", "nodes=n4")
    cluster.command(*make, "ReservationName=r", "starttime=now+3hours", "nodes=n3")
    before_s = time.time()
    begins = cluster.submit(n_nodes=2, duration_s=1, limit_s=60, extra_args=("--begin=now+600",))
    try:
        seen = whole_look(system)
        assert seen.plan_window_s == 720 * 60
        assert seen.plan_resolution_s == 60
        job = _job(seen, begins)
        assert job is not None
        assert (job.state, job.planned_nodes) == (JobState.PENDING, ())
        assert job.start_s is not None
        assert before_s + 570 <= job.start_s <= time.time() + 630
        ends = PrintedQueue(census_of(seen), seen.taken_at_s, system.cycle_s).gap_ends
        # Nobody says on which nodes it starts: it ends no gap.
        assert {n: e.then for n, e in ends.items()} == {
            "n3": Then.RESERVATION,
            "n4": Then.MAINTENANCE,
        }
    finally:
        cluster.cancel(begins)
        for name in ("m", "r"):
            cluster.command("scontrol", "delete", f"ReservationName={name}")


@pytest.mark.long
def test_limits_fit_the_plan_and_a_plan_that_moves_takes_the_nodes_back_before_it(
    cluster: SlurmTestCluster, system: SlurmBatchSystem, tmp_path: Path
) -> None:
    first = cluster.submit(n_nodes=2, duration_s=200, limit_s=420, extra_args=("--nodelist=n1,n2",))
    wait_for(lambda: cluster.started_s(first), what="the first job runs")
    head = cluster.submit(n_nodes=4, duration_s=1, limit_s=300)
    wait_for(lambda: _planned(system, head, time.time() + 600), what="the second is planned")
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy="poll_interval_s: 0.2\nreserve_nodes_per_type: 0\nmin_gap_s: 60\n"
        f"gap_margin_s: {MARGIN_S}\n",
    )
    try:
        sidecar.start()
        trainer = sidecar.client.submit(light_spec(tmp_path / "slow")).record.trainer_id
        pilots = wait_for(
            lambda: p if len(p := _running_pilots(system)) == 2 else None,
            what="pilots run beside the first job",
        )
        assert {p.nodes for p in pilots} == {("n3",), ("n4",)}
        latest_s = time.time() + 600
        plan = _job(whole_look(system), head)
        assert plan is not None
        assert plan.start_s is not None
        assert plan.start_s < latest_s, "the pilots moved the plan"
        for pilot in pilots:
            assert pilot.start_s is not None
            assert pilot.time_limit_s is not None
            assert pilot.start_s + pilot.time_limit_s <= plan.start_s - MARGIN_S + 1
        wait_for(
            lambda: len(sidecar.client.trainer(trainer).observed_nodes) == 2,
            what="both train",
        )
        _run_for(cluster, first, left_s=60.0)
        sooner = wait_for(
            lambda: _planned(system, head, time.time() + 150), what="the plan has moved"
        )
        wait_for(lambda: _gone(system, *(p.job_id for p in pilots)), what="the pilots are gone")
        ended_s = wait_for(lambda: _ended_s(sidecar, pilots), what="the daemon knows it")
        assert sooner.start_s is not None
        assert max(ended_s) < sooner.start_s, "only when the job was due"
        reasons = [r["reason"] for r in _releases(sidecar)]
        assert len(reasons) == 2
        assert all(reason.endswith(f"(job {head}).") for reason in reasons)
        cluster.cancel(first)
        wait_for(lambda: cluster.started_s(head), what="the second job starts")
        assert len(_releases(sidecar)) == 2
        sidecar.client.cancel(trainer, now=True)
    finally:
        sidecar.stop()
        for job_id in (first, head):
            cluster.cancel(job_id)


def _running_pilots(system: SlurmBatchSystem) -> list[Job]:
    seen = system.snapshot()
    return [j for j in seen.jobs or () if not j.is_ordinary and j.state is JobState.RUNNING]


def _ended_s(sidecar: DaemonProcess, pilots: list[Job]) -> list[float] | None:
    """When the daemon knew of each pilot's end; None while it does not."""
    ids = {pilot.pilot_id for pilot in pilots}
    ended = [e for e in sidecar.entries("pilot-ended") if e.payload["pilot_id"] in ids]
    return [e.at_s for e in ended] if len(ended) == len(ids) else None


def _releases(sidecar: DaemonProcess) -> list[dict[str, str]]:
    return [r for e in sidecar.entries("decision") for r in e.payload["plan"]["releases"]]


def test_the_doctor_tells_what_is_left_alone_and_a_shorter_gap_lends_it(
    cluster: SlurmTestCluster, system: SlurmBatchSystem, tmp_path: Path
) -> None:
    """The defaults leave gaps below three minutes alone; 60 and 30 s lend one of them."""
    wait_for(lambda: _is_empty(system), what="the cluster is empty")
    first = cluster.submit(n_nodes=2, duration_s=170, limit_s=180, extra_args=("--nodelist=n1,n2",))
    wait_for(lambda: cluster.started_s(first), what="the first job runs")
    head = cluster.submit(n_nodes=4, duration_s=1, limit_s=300)
    wait_for(lambda: _planned(system, head, time.time() + 185), what="the second is planned")
    usual = "poll_interval_s: 0.2\nreserve_nodes_per_type: 0\n"
    try:
        with daemon_on(cluster, tmp_path / "usual", usual) as daemon:
            daemon.client.submit(light_spec(tmp_path / "usual"))
            told = wait_for(
                lambda: g if (g := _short_gaps(daemon)) and g["near_node_h"] > 0.0 else None,
                what="the daemon has left nodes alone",
            )
            assert (told["min_gap_s"], told["gap_margin_s"]) == (120.0, 60.0)
            assert told["near_node_h"] == told["idle_node_h"]  # both free nodes, from the start
            assert told["cycle_s"] == 2.0
            assert not daemon.entries("pilot-requested")
            why = {node.name: node.reason for node in daemon.client.nodes()}
            assert why["n3"].endswith(f"(job {head}).")
            text = _doctor(cluster, tmp_path / "usual" / "state" / "daemon.sock")
            assert "100.0% of" in text
            assert "use the node within 180 s (min_gap_s 120 + gap_margin_s 60)." in text
            assert "Of gaps that have ended, lower values would lend less" in text
        shorter = f"{usual}min_gap_s: 60\ngap_margin_s: 30\n"
        with daemon_on(cluster, tmp_path / "shorter", shorter) as daemon:
            daemon.client.submit(light_spec(tmp_path / "shorter"))
            pilots = wait_for(
                lambda: p if len(p := _running_pilots(system)) == 2 else None,
                what="the same nodes are lent",
            )
            plan = _job(whole_look(system), head)
            assert plan is not None
            assert plan.start_s is not None
            assert all(
                pilot.start_s + pilot.time_limit_s <= plan.start_s - 30.0 + 1.0
                for pilot in pilots
                if pilot.start_s and pilot.time_limit_s
            )
            cluster.cancel(first)
            wait_for(lambda: cluster.started_s(head), what="the second job starts")
            assert daemon.client.status().preemptions == 0
    finally:
        for job_id in (first, head):
            cluster.cancel(job_id)


def _doctor(cluster: SlurmTestCluster, socket: Path) -> str:
    told = [f"--batch-option={k}={v}" for k, v in cluster.config.batch_options().items()]
    return CliRunner().invoke(cli, ["doctor", *told, "--socket", str(socket)]).stdout


def _short_gaps(daemon: DaemonProcess) -> dict[str, Any] | None:
    gaps = daemon.client.status().measured.short_gaps
    return None if gaps is None else asdict(gaps)


def test_maintenance_over_a_held_node_needs_ignore_jobs(
    cluster: SlurmTestCluster, system: SlurmBatchSystem
) -> None:
    """What docs/howto/slurm-site.md says of maintenance: a pilot is a running job like any."""
    wait_for(lambda: _is_empty(system), what="the cluster is empty")
    job_id = cluster.submit(n_nodes=1, duration_s=60, limit_s=600, partition="bf", user=None)
    make = ("scontrol", "create", "reservation", "ReservationName=m", "users=root")
    when = ("starttime=now+60", "duration=60", "nodes=ALL")
    try:
        wait_for(lambda: cluster.started_s(job_id), what="the job runs")
        refused = cluster.command(*make, *when, "flags=maint")
        assert not refused.is_ok
        assert "busy" in refused.stderr
        assert cluster.command(*make, *when, "flags=maint,ignore_jobs").is_ok
        seen = wait_for(lambda: r[0] if (r := system.snapshot().reservations) else None, what="it")
        assert seen.is_maintenance
    finally:
        cluster.cancel(job_id)
        cluster.command("scontrol", "delete", "ReservationName=m")
