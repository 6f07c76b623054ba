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
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm


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


def test_an_account_that_does_not_exist_is_refused_in_slurms_words(
    cluster: SlurmTestCluster,
) -> None:
    refused = _up(cluster, "--account", "nix")
    assert "error BFT-1283: Slurm would refuse a pilot" in refused.stderr
    assert "Invalid account" in refused.stderr
    assert "next: Yours are: root (--account)." in refused.stderr
