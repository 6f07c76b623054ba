"""The hook in a real Slurm: give-back before any look at the queue."""

from __future__ import annotations

import getpass
import json
import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftrainer.batch.announcer import Announcement
from bftrainer.cli.main import cli
from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import STAND_IN
from bftrainer.model.errors import BatchSystemError
from bftrainer.model.views import PollingView
from slurm_plugins.hook.scripts import FIRST_LINE
from slurm_plugins.hook.squeue_row import ClusterFacts
from slurm_plugins.hook.watch import HookFile
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.slurm_fixtures import cluster_with
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

N_NODES = 4


# Slurm's own slow cycle: nothing here is found by waiting for it.
cluster = cluster_with(n_nodes=N_NODES, has_hook=True)


def test_who_reads_sees_at_once_that_slurm_tells(cluster: SlurmTestCluster) -> None:
    told = cluster.config.hook_file
    assert told.read_text().startswith(FIRST_LINE + "\n"), "no job was submitted yet"
    HookFile(told, "bf", owner_uid=os.getuid()).close()


def test_what_is_said_of_a_job(cluster: SlurmTestCluster) -> None:
    file = HookFile(
        cluster.config.hook_file,
        "bf",
        owner_uid=os.getuid(),
        cluster=lambda: ClusterFacts(cpus_per_node=4),
    )
    heard: list[Announcement] = []

    def told(*, is_submitted: bool) -> list[Announcement]:
        select.select([file], [], [], 0.2)
        heard.extend(file.read())
        return [a for a in heard if (a.job is not None) == is_submitted]

    try:
        job_id = cluster.submit(n_nodes=2, duration_s=0, limit_s=120, extra_args=("--hold",))
        (said,) = wait_for(lambda: told(is_submitted=True), what="a job is announced")
        assert said.job is not None
        assert (said.job.n_nodes, said.job.time_limit_s) == (2, 120.0)
        assert said.job.reason == "JobHeldUser"
        # Whose job it is, though root submits it: so a look shows it, too.
        assert said.job.user == ("nobody" if os.getuid() == 0 else getpass.getuser())
        cluster.submit(n_nodes=1, duration_s=0, limit_s=60, kind="srun")
        wait_for(lambda: len(told(is_submitted=True)) > 1, what="a job of srun is announced")
        tried = told(is_submitted=True)[1]
        assert tried.job is not None
        for change in (f"update JobId={job_id} TimeLimit=3", f"release {job_id}"):
            done = cluster.command("scontrol", *change.split())
            assert done.is_ok, done.stderr
        # A job that changes is no further job.
        wait_for(lambda: len(told(is_submitted=False)) >= 2, what="its changes are announced")
        assert told(is_submitted=True) == [said, tried]
        # Jobs of the test before may end now, too.
        ended = wait_for(lambda: told(is_submitted=False), what="its end is announced")
        assert {a.partition for a in ended} == {"batch"}
    finally:
        file.close()


@contextmanager
def training_everywhere(
    cluster: SlurmTestCluster, directory: Path
) -> Iterator[tuple[DaemonProcess, str]]:
    """A daemon that is told, whose one trainer has all nodes."""
    sidecar = DaemonProcess(
        directory / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy="reserve_nodes_per_type: 0\nmin_gap_s: 30\ngap_margin_s: 5\n",
    )
    spec = light_spec(directory / "slow", n_max=N_NODES)
    try:
        sidecar.start()
        trainer = sidecar.client.submit(spec).record.trainer_id
        wait_for(
            lambda: len(sidecar.client.trainer(trainer).observed_nodes) == N_NODES,
            what="all nodes train",
        )
        yield sidecar, trainer
        sidecar.client.cancel(trainer, now=True)
        queue = ("squeue", "-h", "-p", "bf")
        wait_for(lambda: not cluster.command(*queue).stdout.strip(), what="its pilots are gone")
    finally:
        sidecar.stop()
        cluster.command("scancel", "-p", "bf")  # of a test that failed: not the next one's trouble


def view(sidecar: DaemonProcess) -> PollingView:
    polling = sidecar.client.status().polling
    assert polling is not None
    return polling


def given_back(sidecar: DaemonProcess) -> list[dict[str, str]]:
    return [
        release
        for entry in sidecar.entries("decision")
        for release in entry.payload["plan"]["releases"]
        if release["for_job"]
    ]


def starts(cluster: SlurmTestCluster, job_id: str) -> None:
    wait_for(lambda: cluster.started_s(job_id) is not None, what="the job starts")


def _more_than(sidecar: DaemonProcess, seen: int) -> bool:
    return len(given_back(sidecar)) > seen


def before_a_look(
    cluster: SlurmTestCluster, sidecar: DaemonProcess, trainer: str, n_nodes: int
) -> list[str]:
    """For whom nodes are released when a job comes that was announced and not yet shown.

    A look that has just begun may show a job first: on a busy machine one of several suffices.
    """
    seen = len(given_back(sidecar))
    for _ in range(5):
        job_id = cluster.submit(n_nodes=n_nodes, duration_s=1, limit_s=60)
        wait_for(partial(_more_than, sidecar, seen), what="nodes are given back")
        starts(cluster, job_id)
        released = [release["for_job"] for release in given_back(sidecar)[seen:]]
        seen += len(released)
        if released[0].startswith(STAND_IN):
            return released
        assert set(released) == {job_id}
        wait_for(
            lambda: len(sidecar.client.trainer(trainer).observed_nodes) == N_NODES,
            what="all nodes train again",
        )
    raise AssertionError("every job was shown before it was announced")


def test_nodes_are_given_back_for_a_job_that_no_look_has_shown(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with training_everywhere(cluster, tmp_path) as (sidecar, trainer):
        released = before_a_look(cluster, sidecar, trainer, n_nodes=2)
        # One node is all that an announced job is worth; a look that shows it gives the other.
        assert not any(job_id.startswith(STAND_IN) for job_id in released[1:])
        wait_for(
            lambda: len(sidecar.client.trainer(trainer).observed_nodes) == N_NODES,
            what="all nodes train again",
        )
        # It ends long before the next regular poll, and still is measured.
        short = cluster.submit(n_nodes=1, duration_s=10, limit_s=60)
        wait_for(
            lambda: short in [one.job_id for one in sidecar.client.harm(None).worst],
            what="a hand-over to a short job",
        )


def refused(cluster: SlurmTestCluster, **wanted: Any) -> None:
    with pytest.raises(BatchSystemError, match="Invalid feature"):
        cluster.submit(
            n_nodes=N_NODES, duration_s=1, extra_args=("--constraint=nowhere",), **wanted
        )


@pytest.mark.long
def test_jobs_that_slurm_refuses_cost_everybody_one_node(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with training_everywhere(cluster, tmp_path) as (sidecar, _):
        for _ in range(28):
            refused(cluster)
        wait_for(lambda: given_back(sidecar), what="the first is believed")
        looks = view(sidecar).looks
        wait_for(lambda: view(sidecar).looks > looks + 2, what="looks show none of them")
        for _ in range(10):
            refused(cluster)
        wait_for(lambda: view(sidecar).looks > looks + 4, what="looks show none of them")
        assert len(given_back(sidecar)) == 1
        # The same user's proper job gets what it needs by a look that shows it.
        job_id = cluster.submit(n_nodes=N_NODES, duration_s=1, limit_s=60)
        starts(cluster, job_id)
        assert {release["for_job"] for release in given_back(sidecar)[1:]} <= {job_id}


@pytest.mark.long
def test_a_forged_line_gives_nothing_back_and_the_daemon_polls_until_the_file_is_slurms_again(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    told = cluster.config.hook_file
    with training_everywhere(cluster, tmp_path) as (sidecar, trainer):
        assert view(sidecar).mode == "hook"
        told.chmod(0o666)
        line = f"submit\t{time.time():.0f}\t65534\tbatch\t{N_NODES}" + 11 * "\t" + "batch\n"
        with told.open("a") as file:
            file.write(line)
        wait_for(lambda: view(sidecar).mode == "polling", what="the daemon polls")
        looks = view(sidecar).looks
        wait_for(lambda: view(sidecar).looks > looks + 2, what="it looks every second")
        assert given_back(sidecar) == []
        told.unlink()
        cluster.cancel(cluster.submit(n_nodes=1, duration_s=0, extra_args=("--hold",)))
        wait_for(lambda: view(sidecar).mode == "hook", what="it is told again")
        assert before_a_look(cluster, sidecar, trainer, n_nodes=1)


@pytest.mark.long
def test_a_daemon_that_was_away_hears_of_jobs_again(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with training_everywhere(cluster, tmp_path) as (sidecar, trainer):
        sidecar.kill()
        cluster.cancel(cluster.submit(n_nodes=N_NODES, duration_s=1, extra_args=("--hold",)))
        sidecar.start()
        wait_for(
            lambda: len(sidecar.client.trainer(trainer).observed_nodes) == N_NODES,
            what="all nodes train",
        )
        wait_for(lambda: view(sidecar).mode == "hook", what="it is told")
        assert before_a_look(cluster, sidecar, trainer, n_nodes=1)


@pytest.mark.long
def test_for_a_job_of_srun_slurm_has_taken_nodes_and_at_most_one_more_is_given_back(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    with training_everywhere(cluster, tmp_path) as (sidecar, trainer):
        job_id = cluster.submit(n_nodes=2, duration_s=15, limit_s=60, kind="srun")
        starts(cluster, job_id)
        there = wait_for(
            lambda: [
                nodes
                for nodes in [sidecar.client.trainer(trainer).observed_nodes]
                if len(nodes) < N_NODES
            ],
            what="the trainer has lost nodes",
        )
        released = given_back(sidecar)
        assert N_NODES - 2 - len(released) <= len(there[0]) <= N_NODES - 2
        # A slow machine may show the job itself before Slurm has taken all of its nodes.
        assert len(released) <= 2
        assert [r["for_job"] for r in released if not r["for_job"].startswith(STAND_IN)] in (
            [],
            [job_id],
            [job_id, job_id],
        )
        assert sum(r["for_job"].startswith(STAND_IN) for r in released) <= 1


def test_the_doctor_looks_at_the_real_settings(cluster: SlurmTestCluster) -> None:
    options = cluster.config.batch_options()
    told = [w for key, value in options.items() for w in ("--batch-option", f"{key}={value}")]

    def ask() -> dict[str, str]:
        answer = json.loads(CliRunner().invoke(cli, ["doctor", *told, "--json"]).stdout)
        assert answer["is_safe"] == (not answer["findings"])
        return {f["code"]: f["setting"] for f in answer["findings"]}

    def change(setting: str) -> None:
        done = cluster.command("scontrol", "update", "PartitionName=bf", setting)
        assert done.is_ok, done.stderr

    # No cgroups here; and nodes with GPUs that jobs share.
    known = {"BFT-1556": "ProctrackType=proctrack/linuxproc", "BFT-2120": "lend: nodes"}
    assert ask() == known
    report = CliRunner().invoke(cli, ["doctor", *told, "--socket", "/nowhere/d.sock"])
    lines = report.stdout.splitlines()
    assert report.exit_code == 8
    assert lines[0].startswith(
        "Policy judged: the defaults, as --policy names no file. No daemon was asked, so nothing"
    )
    assert "/nowhere/d.sock" in lines[0]
    assert lines[1:4] == [
        "", "What harms ordinary jobs (1)", "  BFT-1556 ProctrackType=proctrack/linuxproc",
    ]  # fmt: skip
    changed = lines.index("    change: ProctrackType=proctrack/cgroup")
    assert lines[changed + 1] == "    next:   systemctl restart slurmctld"
    change("GraceTime=30")
    try:
        assert ask() == {**known, "BFT-1265": "GraceTime=30"}
    finally:
        change("GraceTime=0")
    missing = cluster.config.hook_file.with_name("missing")
    told += ["--batch-option", f"hook_file={missing}"]
    (setting,) = [found for code, found in ask().items() if code not in known]
    assert setting.startswith(f"The hook's file {missing} cannot be read: ")
