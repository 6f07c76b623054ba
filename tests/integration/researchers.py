"""Somebody with a daemon of their own on the ``cluster`` of a test module."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bftrainer.api.client import Client
from bftrainer.batch import process
from slurm_plugins.testcluster import SlurmTestCluster
from tests.support.waiting import wait_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Researcher:
    """Somebody who can submit jobs, and nothing else."""

    cluster: SlurmTestCluster
    state: Path

    @property
    def client(self) -> Client:
        return Client(self.state / "daemon.sock")

    def says(self, *words: str) -> process.Completed:
        env = {**os.environ, **self.cluster.env, "BFTRAINER_STATE_DIR": str(self.state)}
        argv = (sys.executable, "-m", "bftrainer", *words)
        return process.run(argv, timeout_s=120, env=env, cwd=Path("/"))

    def does(self, *words: str) -> str:
        done = self.says(*words)
        assert done.is_ok, done.stderr
        return done.stdout

    def pilots(self) -> list[str]:
        shown = self.cluster.command("squeue", "-h", "-p", "scavenge", "-o", "%j")
        return shown.stdout.split()


@contextlib.contextmanager
def researching(cluster: SlurmTestCluster, state: Path) -> Iterator[Researcher]:
    """Be somebody with a daemon of their own in ``state``; afterwards it is gone."""
    one = Researcher(cluster=cluster, state=state)
    try:
        yield one
    finally:
        one.says("down", "--now")
        cluster.command("scancel", "--name=bftrainer-daemon")
        cluster.command("scancel", "--partition=scavenge")  # of a daemon that is not there
        # Where two jobs end on a node at once, slurmd 22.05 may lose one end for 65 s.
        wait_for(lambda: not one.pilots(), what="no pilot is left")


@pytest.fixture
def researcher(cluster: SlurmTestCluster, tmp_path: Path) -> Iterator[Researcher]:
    with researching(cluster, tmp_path / "state") as one:
        yield one
