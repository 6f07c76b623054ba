"""The test cluster itself: several at once, by anybody, and nothing left of any."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bftrainer.batch import process
from bftrainer.model.errors import UsageError
from slurm_plugins.testcluster import FAST_CYCLE, ClusterConfig, SlurmTestCluster, processes
from slurm_plugins.testcluster.main import main
from slurm_plugins.testcluster.workload import WorkloadItem, WorkloadRun, load_workload
from tests.integration.slurm_fixtures import (
    cluster_with,
    enterable_directory,
    need_slurm,
    running_cluster,
)
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

REPOSITORY = Path(__file__).parents[3]
SMALL: dict[str, Any] = {"n_nodes": 2, "bf_interval_s": 2, "scheduler_parameters": FAST_CYCLE}


cluster = cluster_with(scope="function", **SMALL)


def left(config: ClusterConfig) -> frozenset[int]:
    return processes.of_cluster(config.slurm_conf, config.cluster_name)


def test_two_clusters_side_by_side(cluster: SlurmTestCluster) -> None:
    with running_cluster(**{**SMALL, "n_nodes": 3, "gpus_per_node": 0}) as other:
        mine = cluster.submit(n_nodes=2, duration_s=600)
        theirs = other.submit(n_nodes=3, duration_s=600)
        wait_for(lambda: cluster.started_s(mine) and other.started_s(theirs), what="two starts")
    assert left(other.config) == frozenset()
    assert cluster.command("squeue", "-h", "-o", "%T").stdout.split() == ["RUNNING"]


@pytest.mark.long
def test_jobs_note_when_they_ran(cluster: SlurmTestCluster) -> None:
    first = cluster.submit(n_nodes=2, duration_s=1.0)
    wait_for(lambda: cluster.started_s(first), what="the first job to run")
    waits = cluster.submit(n_nodes=2, duration_s=1.0, kind="srun")
    wait_for(lambda: cluster.ended_s(waits), what="the end of the second job")
    times = [
        moment
        for job_id in (first, waits)
        for moment in (cluster.started_s(job_id), cluster.ended_s(job_id))
        if moment is not None
    ]
    assert len(times) == 4
    assert times == sorted(times)
    assert times[1] - times[0] >= 1.0
    users = cluster.command("squeue", "-h", "-t", "all", "-o", "%u").stdout.split()
    me = pwd.getpwuid(os.geteuid()).pw_name
    assert (me in users) == (os.geteuid() != 0)  # root submits as somebody else


@pytest.mark.long
def test_down_ends_jobs_that_do_not_want_to(cluster: SlurmTestCluster) -> None:
    stubborn = "trap '' TERM; while :; do sleep 1; done"
    done = cluster.command("sbatch", "-N2", "-o", "/dev/null", f"--wrap={stubborn}")
    assert done.is_ok, done.stderr
    wait_for(
        lambda: cluster.command("squeue", "-h", "-o", "%T").stdout.split() == ["RUNNING"],
        what="the job to run",
    )
    cluster.down()
    assert left(cluster.config) == frozenset()


def test_up_cleans_up_after_a_crash(cluster: SlurmTestCluster) -> None:
    job_id = cluster.submit(n_nodes=1, duration_s=600)
    wait_for(lambda: cluster.started_s(job_id), what="the job to run")
    before = left(cluster.config)
    # Whoever brought it up is gone; another process starts in the same directory.
    again = SlurmTestCluster(cluster.config)
    again.up()
    assert not any(processes.is_alive(pid) for pid in before)
    assert again.command("squeue", "-h").stdout == ""
    assert left(cluster.config)


def test_the_controller_can_be_stopped_and_started(cluster: SlurmTestCluster) -> None:
    job_id = cluster.submit(n_nodes=1, duration_s=600)
    wait_for(lambda: cluster.started_s(job_id), what="the job to run")
    cluster.stop_controller()
    cluster.stop_controller()
    cluster.start_controller()
    cluster.start_controller()
    wait_for(
        lambda: (
            cluster.command("squeue", "-h", "-o", "%i %T").stdout.split() == [job_id, "RUNNING"]
        ),
        what="the job to be known again",
    )


def test_a_scripted_workload_is_recorded(cluster: SlurmTestCluster) -> None:
    items = [
        WorkloadItem(at_s=0.5, n_nodes=1, duration_s=0.5, kind="srun"),
        WorkloadItem(at_s=0.0, n_nodes=2, duration_s=0.5),
        WorkloadItem(at_s=0.6, n_nodes=99, duration_s=0.5),
    ]
    with WorkloadRun(cluster, items) as run:
        assert run.wait(60)
    first, second, third = run.records()
    assert [r.item.at_s for r in (first, second, third)] == [0.0, 0.5, 0.6]
    for record in (first, second):
        assert record.wait_s is not None
        assert record.wait_s > 0
        assert record.ended_s is not None
    assert first.started_s is not None
    assert second.started_s is not None
    assert third.job_id is None
    assert third.error


def test_a_wrong_workload_is_named(tmp_path: Path) -> None:
    script = tmp_path / "w.json"
    for text in ("nonsense", '[{"at_s": 0, "n_nodes": 0, "duration_s": 1}]', "{}"):
        script.write_text(text)
        with pytest.raises(UsageError) as caught:
            load_workload(script)
        assert caught.value.code == "BFT-1246"
    with pytest.raises(UsageError):
        load_workload(tmp_path / "missing.json")


def test_it_empties_no_directory_that_is_not_its_own() -> None:
    need_slurm()
    directory = enterable_directory()
    try:
        precious = directory / "etc" / "precious"
        precious.parent.mkdir()
        precious.write_text("keep")
        with pytest.raises(UsageError) as caught:
            SlurmTestCluster(ClusterConfig(directory=directory, **SMALL)).up()
        assert caught.value.code == "BFT-1243"
        assert precious.read_text() == "keep"
    finally:
        shutil.rmtree(directory)


def test_a_closed_directory_is_refused_for_root(tmp_path: Path) -> None:
    need_slurm()
    if os.geteuid() != 0:
        pytest.skip("only root's jobs run as somebody else")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with pytest.raises(UsageError) as caught:
        SlurmTestCluster(ClusterConfig(directory=closed / "lab", **SMALL)).up()
    assert caught.value.code == "BFT-1243"


@pytest.mark.long
def test_the_command_line_as_an_ordinary_user() -> None:
    """Up, one job, a workload, status, down: all of it without root."""
    need_slurm()
    parent = enterable_directory()
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(parent, nobody.pw_uid, nobody.pw_gid)
        prefix = ("setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}")
        prefix += ("--clear-groups",)
        if not process.run((*prefix, "test", "-r", __file__), timeout_s=30).is_ok:
            pytest.skip("an ordinary user cannot read this file")
    where = f"--directory={parent}/lab"
    script = parent / "w.json"
    script.write_text(json.dumps([{"at_s": 0, "n_nodes": 2, "duration_s": 0.2, "limit_s": 60}]))

    def call(*argv: str) -> process.Completed:
        program = "from slurm_plugins.testcluster.main import main; main()"
        return process.run(
            (*prefix, sys.executable, "-c", program, *argv),
            timeout_s=90,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "HOME": str(parent)},
            cwd=Path("/"),
        )

    config = ClusterConfig(directory=parent / "lab")
    try:
        up = call(
            "up", where, "--nodes=2", "--bf-interval=2", f"--scheduler-parameters={FAST_CYCLE}"
        )
        assert up.is_ok, up.stderr
        assert up.stdout == f"export SLURM_CONF={parent}/lab/etc/slurm.conf\n"
        job = call("submit", where, "--duration=300")
        assert job.stdout.strip().isdigit(), job.stderr
        call_cancel = SlurmTestCluster.load(parent / "lab").command("scancel", job.stdout.strip())
        assert call_cancel.is_ok, call_cancel.stderr
        done = call("submit", where, f"--script={script}")
        assert done.is_ok, done.stderr
        (record,) = json.loads(done.stdout)
        assert record["ended_s"] > record["started_s"] > record["submitted_s"]
        status = call("status", where)
        assert "batch*" in status.stdout
    finally:
        down = call("down", where)
        remaining = left(config)
        for pid in remaining:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(parent)
    assert down.is_ok, down.stderr
    assert not remaining


def test_verbs_say_when_there_is_no_cluster(tmp_path: Path) -> None:
    for verb in ("down", "status", "submit"):
        result = CliRunner().invoke(main, [verb, "--directory", str(tmp_path)])
        assert result.exit_code == 2
        assert "BFT-1242" in result.output
        assert "bftrainer-testcluster up" in result.output
