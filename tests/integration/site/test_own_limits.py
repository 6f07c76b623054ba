"""Limits of one user, read from a real Slurm with accounting: ``bftrainer up --dry-run``."""

from __future__ import annotations

import getpass
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch import process
from slurm_plugins.launcher import size_options
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm
_STARTED_OR_LIMITED = ("RUNNING None", "PENDING AssocGrpMemLimit")


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    with running_cluster(
        n_nodes=4,
        gpus_per_node=0,
        accounting=True,
        enforces_limits=True,
        pilot_partition="scavenge",
    ) as running:
        if os.geteuid() != 0:  # root's account is there from the start
            _manage(running, "add", "user", getpass.getuser(), "account=root")
        yield running


def _up(cluster: SlurmTestCluster, *options: str) -> process.Completed:
    argv = (sys.executable, "-m", "bftrainer", "up", "--dry-run", "--json", *options)
    env = {**os.environ, **cluster.env}
    return process.run(argv, timeout_s=60, env=env, cwd=Path("/"))


def _settings(cluster: SlurmTestCluster, *options: str) -> dict[str, Any]:
    done = _up(cluster, *options)
    assert done.is_ok, done.stderr
    settings: dict[str, Any] = json.loads(done.stdout)["settings"]
    return settings


def _manage(cluster: SlurmTestCluster, *words: str) -> None:
    done = cluster.command("sacctmgr", "--immediate", *words)
    assert done.is_ok, done.stderr


@pytest.mark.long
def test_limits_of_the_user_and_of_the_qos_are_kept(cluster: SlurmTestCluster) -> None:
    user = getpass.getuser()
    assert _settings(cluster)["max_nodes"]["value"] == 4
    _manage(cluster, "modify", "user", user, "set", "MaxJobs=3")
    found = _settings(cluster)["max_nodes"]
    assert found == {"value": 3, "why": f"MaxJobs=3 of user {user} in account root"}
    _manage(cluster, "add", "qos", "scav", "MaxTRESPU=cpu=9", "MaxWall=00:30:00")
    _manage(cluster, "modify", "user", user, "set", "qos+=scav")

    def with_qos() -> dict[str, Any] | None:  # the controller learns of it a moment later
        done = _up(cluster, "--qos", "scav")
        return json.loads(done.stdout)["settings"] if done.is_ok else None

    chosen = wait_for(with_qos, what="the QOS is known")
    assert chosen["max_nodes"]["value"] == 2
    assert "MaxTRESPU=cpu=9 of QOS scav, and a pilot takes 4" in chosen["max_nodes"]["why"]
    assert chosen["pilot_time_limit_s"] == {"value": 1800.0, "why": "MaxWall of QOS scav"}
    _manage(cluster, "modify", "user", user, "set", "GrpTRES=cpu=3")
    assert "error BFT-1284: No pilot is allowed: GrpTRES=cpu=3 of user" in _up(cluster).stderr
    _manage(cluster, "modify", "user", user, "set", "MaxSubmitJobs=0")
    refused = wait_for(
        lambda: d if "BFT-1283" in (d := _up(cluster)).stderr else None, what="it is refused"
    )
    assert "AssocMaxSubmitJobLimit" in refused.stderr
    _manage(cluster, "modify", "user", user, "set", "MaxSubmitJobs=-1", "GrpTRES=cpu=-1")


@pytest.mark.long
def test_slurm_starts_as_many_pilots_as_a_limit_on_memory_is_said_to_allow(
    cluster: SlurmTestCluster,
) -> None:
    """Whole-node pilots ask for no amount of memory, and Slurm charges them all of the node's."""
    user, n_pilots = getpass.getuser(), 4
    memory_mb = int(cluster.command("sinfo", "-h", "-n", "n1", "-o", "%m").stdout.split()[0])
    _manage(cluster, "modify", "user", user, "set", f"GrpTRES=mem={5 * memory_mb // 2}M")
    job_ids: list[str] = []
    try:
        for _ in range(n_pilots):
            asked = ("--parsable", "-p", "scavenge", "-N1", "-t5", *size_options(None))
            done = cluster.command("sbatch", *asked, "-o/dev/null", "--wrap", "sleep 300")
            job_ids.append(done.stdout.strip())

        def states() -> list[str]:
            listed = cluster.command("squeue", "-h", "-u", user, "-o", "%T %r").stdout
            lines = sorted(listed.splitlines())
            is_settled = all(line in _STARTED_OR_LIMITED for line in lines)
            return lines if is_settled and len(lines) == n_pilots else []

        settled = wait_for(states, what="each runs, or waits for the limit")
        n_running = settled.count("RUNNING None")
        plan = _settings(cluster)["max_nodes"]
        assert plan["value"] == n_running < n_pilots
        assert "GrpTRES=mem=" in plan["why"]
    finally:
        cluster.command("scancel", *job_ids)
        _manage(cluster, "modify", "user", user, "set", "GrpTRES=mem=-1")


def test_an_account_that_does_not_exist_is_refused_in_slurms_words(
    cluster: SlurmTestCluster,
) -> None:
    refused = _up(cluster, "--account", "nix")
    assert "error BFT-1283: Slurm would refuse a pilot" in refused.stderr
    assert "Invalid account" in refused.stderr
    assert "next: Yours are: root (--account)." in refused.stderr
