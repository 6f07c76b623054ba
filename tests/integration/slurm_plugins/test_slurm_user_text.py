"""A user of a real Slurm submits what no honest one would: the daemon lives and answers."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.lab.demo.sidecar import DaemonProcess
from bftrainer.model.cluster import JobState
from slurm_plugins.adapter import create
from slurm_plugins.fields import UNREAD
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import running_cluster, whole_look
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

PAIRS = [(f"a{k}", f"b{k}") for k in range(18)]
REFUSED: tuple[tuple[str, ...], ...] = (
    ("-C", "(" * 600 + "a0" + ")" * 600),
    ("-C", "|".join(["a"] * 60_000)),
    ("-C", "&".join("(x|y)" for _ in range(18))),
    ("--gres", "gpu:1" + "," * 20_000),
    ("-w", "n[1-200][1-200]"),
    ("-p", ",".join(f"p{k}" for k in range(10_000))),
)
ACCEPTED: tuple[tuple[str, ...], ...] = (  # they wait, for whatever they asked for
    ("-C", "&".join(f"({one}|{other})" for one, other in PAIRS)),
    ("-t", "4286331155"),  # minutes
    ("-p", ",".join(["batch"] * 150)),
    ("--hold", "-n", "2", "--mem-per-cpu=9999999999999M"),
    ("--begin=1960-01-01",),
    ("-x", ",".join(["n1"] * 9_000)),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmTestCluster]:
    """Two nodes in use, one with features, and a partition without a limit of time."""
    with running_cluster(
        n_nodes=2, has_hook=True, bf_interval_s=2, scheduler_parameters=FAST_CYCLE
    ) as running:
        features = ",".join(name for pair in PAIRS for name in pair)
        for change in (
            ("NodeName=n1", f"Features={features}"),
            ("PartitionName=batch", "MaxTime=INFINITE"),
        ):
            done = running.command("scontrol", "update", *change)
            assert done.is_ok, done.stderr
        running.submit(n_nodes=2, duration_s=3600)
        yield running


def submit(cluster: SlurmTestCluster, *words: str) -> bool:
    """Submit a job as an ordinary user; whether Slurm accepts it."""
    as_user: tuple[str, ...] = ("--chdir=/", "--output=/dev/null")
    if os.geteuid() == 0:
        user = pwd.getpwnam("nobody")
        as_user += (f"--uid={user.pw_uid}", f"--gid={user.pw_gid}")
    return cluster.command("sbatch", *as_user, *words, "--wrap=true").is_ok


@pytest.mark.long
def test_the_daemon_lives_and_answers_whatever_a_user_submits(
    cluster: SlurmTestCluster, tmp_path: Path
) -> None:
    sidecar = DaemonProcess(
        tmp_path / "state",
        batch_system="slurm",
        batch_options=cluster.config.batch_options(),
        policy="poll_interval_with_hook_s: 1\nrequests_per_minute: 600\n"
        "requests_per_minute_with_hook: 600\n",
    )
    try:
        sidecar.start()
        for asked in REFUSED:
            assert not submit(cluster, *asked), asked[0]
        for asked in ACCEPTED:
            assert submit(cluster, *asked), asked
        before = looks(sidecar)
        wait_for(
            lambda: looks(sidecar) > before + 1,
            what="looks at all of them, and answers meanwhile",
        )
        assert sidecar.client.status().failures == ()
        assert "Traceback" not in sidecar.log.read_text() + sidecar.out.read_text()
    finally:
        sidecar.stop()


def looks(sidecar: DaemonProcess) -> int:
    polling = sidecar.client.status().polling
    assert polling is not None
    return polling.looks


def test_one_users_jobs_keep_nobody_from_seeing_the_others(cluster: SlurmTestCluster) -> None:
    for words in ACCEPTED:
        assert submit(cluster, *words), words
    seen = whole_look(create(cluster.config.batch_options()))
    pending = [job for job in seen.jobs or () if job.state is JobState.PENDING]
    assert len(pending) >= len(ACCEPTED)
    assert not any(UNREAD in job.unclear for job in pending), "Slurm's own bounds are within ours"
