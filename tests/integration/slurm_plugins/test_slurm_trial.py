"""``doctor --try-release`` on a real Slurm that says it is of a release nobody knows."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bftrainer.cli.main import cli
from slurm_plugins import trial
from slurm_plugins.adapter import create
from slurm_plugins.releases import KNOWN, release_of
from slurm_plugins.testcluster import SlurmTestCluster
from tests.integration.slurm_fixtures import fast_cluster_with, whole_look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm


cluster = fast_cluster_with(n_nodes=1, gpus_per_node=0)


@pytest.fixture(scope="module")
def new(cluster: SlurmTestCluster) -> str:
    """The release of a month later, of which there is none; it has the words of the real one."""
    year, _, month = release_of(cluster.command("sinfo", "-V").stdout).partition(".")
    return f"{year}.{int(month) + 1:02d}"


@pytest.fixture
def pretending(cluster: SlurmTestCluster, new: str, tmp_path: Path) -> Path:
    """A folder of commands before the real ones, which say another version."""
    path = cluster.config.path
    for name in ("sinfo", "scontrol"):
        real = shutil.which(name, path=path)
        command = tmp_path / name
        say = f"s/^(slurm\\S* |SLURM_VERSION *= )[0-9]+\\.[0-9]+/\\1{new}/"
        command.write_text(f'#!/bin/bash\nset -o pipefail\n{real} "$@" | sed -E "{say}"\n')
        command.chmod(0o755)
    return tmp_path


def doctor(cluster: SlurmTestCluster, before: Path, *more: str) -> Result:
    policy = before / "policy.yaml"
    policy.write_text(json.dumps({"batch_options": options(cluster, before)}))
    argv = ["doctor", "--policy", str(policy), "--socket", "/nonexistent", *more]
    return CliRunner().invoke(cli, argv)


def options(cluster: SlurmTestCluster, before: Path) -> dict[str, object]:
    path = f"{before}:{cluster.config.path}"
    return {**cluster.config.batch_options(), "environment": {"PATH": path}}


def is_left_alone(cluster: SlurmTestCluster) -> bool:
    jobs = cluster.command("squeue", "-h", "-a", "-o", "%i")
    node = cluster.command("sinfo", "-h", "-N", "-p", "bf", "-o", "%T")
    return jobs.stdout.strip() == "" and node.stdout.strip() == "idle"


def test_a_new_release_is_tried_on_one_node_and_then_accepted(
    cluster: SlurmTestCluster, pretending: Path, new: str
) -> None:
    found = doctor(cluster, pretending, "--json")
    (told,) = [f for f in json.loads(found.stdout)["findings"] if f["code"] == "BFT-1571"]
    assert "bftrainer doctor --try-release" in told["remedy"]
    tried = doctor(cluster, pretending, "--try-release")
    assert tried.exit_code == 0, tried.output
    assert "FAILED" not in tried.stdout
    assert tried.stdout.count("passed") == 8
    accept = f'batch_options: {{accept_release: "{new}"}}'
    assert tried.stdout.splitlines()[-1] == f"To use it, in the policy: {accept}"
    assert is_left_alone(cluster)
    system = create({**options(cluster, pretending), "accept_release": new})
    assert whole_look(system).failures == ()


def test_a_step_that_fails_is_named_and_nothing_is_left(
    cluster: SlurmTestCluster, pretending: Path
) -> None:
    """A release whose scancel sends no signal: the pilot is ended all the same."""
    real = shutil.which("scancel", path=cluster.config.path)
    command = pretending / "scancel"
    command.write_text(f'#!/bin/sh\n[ "$1" = -b ] && shift 3\nexec {real} "$@"\n')
    command.chmod(0o755)
    tried = doctor(cluster, pretending, "--try-release", "--json")
    assert tried.exit_code == 8
    report = json.loads(tried.stdout)
    assert not report["is_passed"]
    assert report["steps"][-1]["what"] == "it leaves when asked"
    assert "did not see the signal" in report["steps"][-1]["seen"]
    wait_for(lambda: is_left_alone(cluster), what="nothing is left")


def test_a_changed_answer_is_found_before_a_pilot_is_submitted(
    cluster: SlurmTestCluster, pretending: Path, new: str
) -> None:
    squeue = pretending / "squeue"
    squeue.write_text("#!/bin/sh\necho another format\n")
    squeue.chmod(0o755)
    tried = doctor(cluster, pretending, "--try-release")
    assert tried.exit_code == 8
    assert "squeue printed something unexpected" in tried.stdout
    assert tried.stdout.splitlines()[-1] == f"Release {new} did not pass."
    assert "accept_release" not in tried.stdout


def test_without_an_idle_node_nothing_is_tried(cluster: SlurmTestCluster, pretending: Path) -> None:
    cluster.set_node("n1", "drain")
    try:
        tried = doctor(cluster, pretending, "--try-release")
    finally:
        cluster.set_node("n1", "resume")
    assert "BFT-1573" in str(tried.exception)
    wait_for(lambda: is_left_alone(cluster), what="the node is back")


def test_a_known_release_can_be_tried_too(cluster: SlurmTestCluster, tmp_path: Path) -> None:
    tried = doctor(cluster, tmp_path, "--try-release", "--json")
    report = json.loads(tried.stdout)
    assert report["is_passed"], report
    assert (report["release"] in KNOWN, report["accept"]) == (True, "")


def test_a_pilot_that_the_signal_finds_starting_has_left_too(
    cluster: SlurmTestCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy node Python has not blocked the signal yet when it comes."""
    monkeypatch.setattr(trial, "_AGENT", "import time; time.sleep(600)")
    tried = doctor(cluster, tmp_path, "--try-release", "--json")
    report = json.loads(tried.stdout)
    assert report["is_passed"], report
    assert {
        "what": "it leaves when asked",
        "seen": "the signal ended it",
        "is_passed": True,
    } in (report["steps"])


def test_a_signal_that_is_lost_is_sent_again(
    cluster: SlurmTestCluster, pretending: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmd drops a signal that finds the batch step starting, and scancel does not say so."""
    real = shutil.which("scancel", path=cluster.config.path)
    is_lost = pretending / "first signal is lost"
    command = pretending / "scancel"
    command.write_text(
        f'#!/bin/sh\n[ "$1" = -b ] && [ ! -e "{is_lost}" ] && touch "{is_lost}" && exit\n'
        f'exec {real} "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setattr(trial, "WAIT_S", 30.0)
    monkeypatch.setattr(trial, "_PAUSE_S", 0.1)
    report = json.loads(doctor(cluster, pretending, "--try-release", "--json").stdout)
    assert report["is_passed"], report
    assert is_lost.exists()


def test_other_batch_systems_have_no_such_trial() -> None:
    of = ("--batch-option", "socket=/nonexistent")
    tried = CliRunner().invoke(cli, ["doctor", "--batch-system", "local", *of, "--try-release"])
    assert "BFT-1574" in str(tried.exception)
