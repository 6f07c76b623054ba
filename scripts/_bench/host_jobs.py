"""Ordinary jobs on a cluster of several hosts."""

from __future__ import annotations

import time
from typing import Final

from _bench.waiting import wait_until
from tests.support.hosts import Cluster

PATIENCE_S: Final = 300.0  # until a job starts


def job_wait(cluster: Cluster, *options: str) -> float:
    """Submit an ordinary job of one node; seconds until it starts."""
    note = f"/home/bob/started-{time.time_ns()}"
    began_s = time.time()
    wrap = f"--wrap=date +%s.%N > {note}.tmp; mv {note}.tmp {note}"
    job = ("sbatch", "-pbatch", "-N1", "-o/dev/null", *options, wrap)
    cluster.does("login", *job, user="bob")
    started = cluster.home / note.removeprefix("/home/")
    wait_until(started.exists, "an ordinary job's start", patience_s=PATIENCE_S)
    return float(started.read_text()) - began_s
