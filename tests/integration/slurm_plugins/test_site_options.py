"""Sites that take only jobs with a comment, a feature, a licence or a reservation: a real Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.daemon_scripts import light_spec
from tests.integration.researchers import Researcher, researcher
from tests.integration.slurm_fixtures import running_cluster
from tests.support.waiting import wait_for

__all__ = ["researcher"]

pytestmark = pytest.mark.slurm

# The rule of some sites: who may be preempted must say so.
RULE = """\
function slurm_job_submit(job, partitions, uid)
  if job.partition == "scavenge" and job.comment ~= "preempt me" then
    slurm.log_user("jobs here need the comment: preempt me")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    with running_cluster(
        n_nodes=4,
        node_types=(("", ""), ("", "ib"), ("", "ib"), ("", "ib,new")),
        gpus_per_node=0,
        has_hook=True,
        bf_interval_s=2,
        scheduler_parameters=FAST_CYCLE,
        pilot_partition="scavenge",
        preempt_mode="REQUEUE",
    ) as running:
        conf = running.config.slurm_conf
        conf.write_text(conf.read_text() + "Licenses=sim:2\n")
        rule = conf.with_name("job_submit.lua")
        rule.write_text(RULE)
        os.utime(rule, (time.time() + 5, time.time() + 5))  # newer than what is loaded, in seconds
        running.command("scontrol", "reconfigure")
        yield running


def running(cluster: SlurmTestCluster, fields: str) -> list[str]:
    shown = cluster.command("squeue", "-h", "-p", "scavenge", "-t", "R", "-o", fields)
    return sorted(shown.stdout.splitlines())


def test_pilots_have_what_the_site_requires_and_its_nodes_alone(
    cluster: SlurmTestCluster, researcher: Researcher, tmp_path: Path
) -> None:
    """Without the comment Slurm takes no pilot, and ``up`` says so."""
    refused = researcher.says("up")
    assert "BFT-1283" in refused.stderr
    assert "jobs here need the comment: preempt me" in refused.stderr
    assert "--comment" in refused.stderr
    researcher.does(
        *("up", "--comment", "preempt me", "-C", "ib", "-L", "sim:1"),
        *("--sbatch-option=--gres-flags=enforce-binding", "--max-nodes", "4"),
    )
    researcher.client.submit(light_spec(tmp_path, n_max=4))
    wait_for(lambda: len(running(cluster, "%N")) == 2, what="as many pilots as licences")
    shown = running(cluster, "%N|%k|%f|%W")
    assert [line.partition("|")[2] for line in shown] == ["preempt me|ib|sim:1"] * 2
    assert not [line for line in shown if line.startswith("n1|")]


@pytest.mark.long
def test_pilots_of_a_reservation_use_its_nodes_until_it_ends(
    cluster: SlurmTestCluster, researcher: Researcher, tmp_path: Path
) -> None:
    cluster.command(
        *("scontrol", "create", "reservation", "ReservationName=ours", "StartTime=now"),
        *("Duration=60", "Nodes=n3,n4", "Users=root", "Flags=IGNORE_JOBS"),
    )
    try:
        researcher.does("up", "--comment", "preempt me", "--reservation", "ours")
        researcher.client.submit(light_spec(tmp_path, n_max=4))
        wait_for(lambda: running(cluster, "%N|%v") == ["n3|ours", "n4|ours"], what="both nodes")
        limits = running(cluster, "%L")
        assert all(limit.startswith(("5", "4")) for limit in limits), limits  # minutes
    finally:
        researcher.does("down", "--now")
        wait_for(lambda: not researcher.pilots(), what="no pilot is left")
        cluster.command("scontrol", "delete", "ReservationName=ours")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--sbatch-option=--partition=batch",), "--partition of up"),
        (("--sbatch-option=--parti=batch",), "--partition"),  # sbatch takes the beginning, too
        pytest.param(("--sbatch-option=--nodes=4",), "--nodes", marks=pytest.mark.long),
        pytest.param(("--sbatch-option=-N4",), "'-N4' is not --name", marks=pytest.mark.long),
        (("--comment", "a\nb"), "in one line"),
        (("--sbatch-option=--gres=gpu:1",), "--lend of up"),
    ],
)
def test_what_pilots_rely_on_is_refused_with_our_own_option(
    researcher: Researcher, words: tuple[str, ...], named: str
) -> None:
    done = researcher.says("up", "--dry-run", *words)
    assert done.returncode == 2
    assert done.stderr.startswith("error BFT-1220: An option for sbatch cannot be passed on: ")
    assert named in done.stderr
