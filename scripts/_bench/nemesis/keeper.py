"""Starts the user's daemon, and starts it again when it has ended, as its user would.

Beside that it sets what the benchmark needs of the policy, which ``up`` writes anew each time.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Final, Self

from _bench.benchmark import note
from _bench.waiting import wait_until
from tests.support.hosts import Cluster, HostError
from tests.support.hosts.own_daemon import OwnDaemon
from tests.support.hosts.plan import LOGIN

PARTITION: Final = "scavenge"
PROGRAM: Final = "bftrainer daemon"
PAUSE_S: Final = 0.5
PATIENCE_S: Final = 180.0
# Each trainer has its share, so that none waits though a node is free; Slurm is asked every
# second; no trainer is given up for what is done to it.
SETTINGS: Final = {
    "policy": "equal-share",
    "poll_interval_s": "1.0",
    "requests_per_minute": "1000",
    "failure_budget": "1000",
}


class Keeper:
    """A thread that keeps the daemon running while it is wanted."""

    def __init__(self, cluster: Cluster, daemon: OwnDaemon) -> None:
        self._cluster, self._daemon = cluster, daemon
        self.is_wanted = True
        self.refusals: list[str] = []  # of verbs that start it
        self.starts_s: list[float] = []  # since the epoch
        self._is_set = self._is_over = False
        self._thread = threading.Thread(target=self._keep, name="keeper")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Start it no more."""
        self._is_over = True
        self._thread.join()

    def await_set(self) -> None:
        """Wait until it runs with its settings.

        Raises:
            BenchError: it does not.
        """
        wait_until(lambda: self._is_set and self.pids(), "the daemon runs", patience_s=PATIENCE_S)

    def pids(self) -> list[int]:
        """Return its processes, as numbered outside; none without power."""
        try:
            return self._cluster.processes(LOGIN, PROGRAM)
        except (OSError, HostError):  # it ends just now
            return []

    def _keep(self) -> None:
        while not self._is_over:
            if self.is_wanted and LOGIN in self._cluster.powered:
                if not self.pids():
                    self._start()
                elif not self._is_set:
                    self._set()
            time.sleep(PAUSE_S)

    def _start(self) -> None:
        self._is_set = False
        if self._says("up", "--partition", PARTITION):
            self.starts_s.append(time.time())
            self._set()

    def _set(self) -> None:
        try:
            (path,) = self._cluster.home.glob(f"{self._daemon.user}/.bftrainer/*/policy.yaml")
            _write_settings(path)
        except (OSError, ValueError) as problem:  # its disk is full, or its host has no power
            self._refused(f"policy: {problem!r}")
            return
        self._is_set = self._says("policy", "reload")

    def _says(self, *words: str) -> bool:
        try:
            ended = self._daemon.says(*words)
        except (OSError, HostError) as problem:
            self._refused(f"{words[0]}: {problem}")
            return False
        if not ended.is_ok:
            text = " ".join(f"{ended.stdout}\n{ended.stderr}".split())
            self._refused(f"{words[0]}: {text[-400:]}")
        return ended.is_ok

    def _refused(self, why: str) -> None:
        self.refusals.append(why)
        note(f"refused: {why}")


def _write_settings(path: Path) -> None:
    ours = "|".join(SETTINGS)
    text = re.sub(rf"(?m)^({ours}): .*\n", "", path.read_text())
    whole = path.with_suffix(".new")
    whole.write_text(text + "".join(f"{key}: {value}\n" for key, value in SETTINGS.items()))
    account = path.stat()
    whole.chmod(account.st_mode)
    os.chown(whole, account.st_uid, account.st_gid)
    whole.rename(path)
