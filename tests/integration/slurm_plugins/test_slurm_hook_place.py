"""What a real slurmctld does when there is something else in the place of the hook's file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bftrainer.batch import process
from slurm_plugins.hook.lines import announcement
from slurm_plugins.hook.scripts import FIRST_LINE, MAX_BYTES, OLD
from slurm_plugins.testcluster import FAST_CYCLE, SlurmTestCluster
from tests.integration.slurm_fixtures import cluster_with
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slurm

PRIVATE = "what only SlurmUser may write\n"
NOBODY = 65534


cluster = cluster_with(n_nodes=1, has_hook=True, scheduler_parameters=FAST_CYCLE)


@pytest.fixture
def told(cluster: SlurmTestCluster) -> Iterator[Path]:
    """Nothing is there; afterwards there is nothing again."""
    path = cluster.config.hook_file
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(mode=0o755)
    yield path
    shutil.rmtree(path.parent, ignore_errors=True)
    path.parent.mkdir(mode=0o755)


def run(cluster: SlurmTestCluster) -> None:
    """A job is submitted, runs and ends, and its epilog with it."""
    job_id = cluster.submit(n_nodes=1, duration_s=0, limit_s=60)
    show = ("scontrol", "show", "job", job_id)
    wait_for(lambda: cluster.ended_s(job_id) is not None, what="the job ends")
    wait_for(lambda: "COMPLETED" in cluster.command(*show).stdout, what="its epilog has ended")


def lines(path: Path) -> list[str]:
    return [line.split("\t")[0] for line in path.read_text().splitlines()]


def test_the_scripts_make_the_file_themselves(cluster: SlurmTestCluster, told: Path) -> None:
    run(cluster)
    wait_for(lambda: lines(told) == [FIRST_LINE, "submit", "end"], what="both scripts have written")
    assert told.stat().st_mode & 0o022 == 0


def test_nothing_of_a_job_reaches_the_scripts_but_its_line(
    cluster: SlurmTestCluster, told: Path, tmp_path: Path
) -> None:
    """Passes: Slurm gives them variables of its own alone (CVE-2021-31215 was fixed in 20.11.7).

    The Lua script replaces control characters.
    """
    ran, evil = tmp_path / "ran", tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\necho >>{ran}\n")
    evil.chmod(0o755)
    tmp_path.chmod(0o777)
    env = {
        "BASH_ENV": str(evil),
        "ENV": str(evil),
        "PS4": f"$({evil})",
        "SHELLOPTS": "xtrace",
        "BASH_FUNC_printf%%": f"() {{ {evil}; }}",
        "SLURM_JOB_NODELIST": "n1\nend\t1\t1\tx\tn",
        "LD_PRELOAD": str(evil),
        "SLURM_JOB_PARTITION": "x\ny",
        "SPANK_PATH": str(tmp_path),
    }
    argv = ("sbatch", "--parsable", "-N1", "-t1", "-o/dev/null", "-Ja\nsubmit\tb", "--comment=a\nb")
    asked = process.run(
        (*argv, "-Cf1\nend", "--wrap=true"), timeout_s=60, env={**os.environ, **cluster.env, **env}
    )
    assert not asked.is_ok  # Slurm has no such feature
    job = process.run(
        (*argv, "--wrap=true"), timeout_s=60, env={**os.environ, **cluster.env, **env}
    )
    assert job.is_ok, job.stderr
    wait_for(lambda: lines(told)[-1:] == ["end"], what="its epilog has written")
    assert lines(told) == [FIRST_LINE, "submit", "submit", "end"]
    end = announcement(told.read_text().splitlines()[-1], 1)
    assert end is not None
    assert (end.partition, end.nodes) == ("batch", tuple(cluster.config.node_names))
    assert not ran.exists()


def test_a_full_file_is_put_aside(cluster: SlurmTestCluster, told: Path) -> None:
    for _ in range(2):
        told.write_text(f"{FIRST_LINE}\n{'x' * MAX_BYTES}\n")
        run(cluster)
        wait_for(lambda: lines(told) == [FIRST_LINE, "submit", "end"], what="a fresh one")
    assert sorted(p.name for p in told.parent.iterdir()) == ["told", "told" + OLD]


def test_a_pipe_holds_nobody_up(cluster: SlurmTestCluster, told: Path) -> None:
    os.mkfifo(told)
    run(cluster)
    run(cluster)


@pytest.mark.parametrize("size", [len(PRIVATE), 2 * MAX_BYTES], ids=["small", "large"])
def test_nothing_is_written_through_a_link(
    cluster: SlurmTestCluster, told: Path, tmp_path: Path, size: int
) -> None:
    own = tmp_path / "own"
    own.write_text(PRIVATE * (size // len(PRIVATE)))
    own.chmod(0o600)
    before = own.read_text()
    told.symlink_to(own)
    run(cluster)
    assert own.read_text() == before
    assert told.is_symlink()


def test_a_full_disk_holds_nobody_up(cluster: SlurmTestCluster, told: Path) -> None:
    told.symlink_to("/dev/full")
    run(cluster)
    run(cluster)


@pytest.mark.parametrize("text", [PRIVATE, FIRST_LINE + "\n"], ids=["any", "like ours"])
def test_a_strangers_file_holds_nobody_up(cluster: SlurmTestCluster, told: Path, text: str) -> None:
    told.write_text(text)
    if os.getuid() == 0:
        os.chown(told, NOBODY, -1)
    told.chmod(0o666)
    run(cluster)
    assert told.read_text().startswith(text)


def test_no_directory_is_no_matter(cluster: SlurmTestCluster, told: Path) -> None:
    told.parent.rmdir()
    run(cluster)


def test_a_job_too_long_to_be_told_calls_for_a_look(cluster: SlurmTestCluster, told: Path) -> None:
    done = cluster.command(
        "sbatch", "--constraint=" + "|".join(["a"] * 5000), "--output=/dev/null", "--wrap=true"
    )
    assert not done.is_ok
    assert lines(told) == [FIRST_LINE, "modify"]
