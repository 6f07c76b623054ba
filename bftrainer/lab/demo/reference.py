"""The scripts of the trainers without bftrainer, for comparison: one after the other.

Each runs as ``python`` would run it; a site knows how. They end with the site at the latest.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from bftrainer.batch import process
from bftrainer.lab.demo.trainers import DemoTrainer


class PlainRun(Protocol):
    """A script that runs."""

    def has_ended(self, wait_s: float) -> bool:
        """Wait that long for its end; return whether it has ended."""


class PlainRuns(Protocol):
    """What runs scripts."""

    def __call__(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, /
    ) -> PlainRun:
        """Start a script with its arguments; its output goes to ``log``."""


class TemplateRun:
    """A script in a copy of the host's template, which has imported torch."""

    def __init__(
        self, template: Path, argv: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        """Start it; ``template`` is the socket of the host's template."""
        run = {"argv": list(argv), "environment": dict(environment), "log": str(log)}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(template))
        self._socket.send(json.dumps({"run": run}).encode())

    def has_ended(self, wait_s: float) -> bool:
        """Wait that long for its end; return whether it has ended."""
        self._socket.settimeout(wait_s)
        try:
            self._socket.recv(1)  # returns when the script ends
        except TimeoutError:
            return False
        self._socket.close()
        return True


class ProcessRun:
    """A script in a process of its own."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """Start it."""
        with log.open("ab") as out:
            self._child = process.spawn(
                (sys.executable, *argv), env=dict(environment), stdout=out, stderr=out
            )

    def has_ended(self, wait_s: float) -> bool:
        """Wait that long for its end; return whether it has ended."""
        try:
            self._child.wait(wait_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """Kill it, if it runs."""
        self._child.kill()
        self._child.wait()


class References:
    """A queue of scripts, one of which is running."""

    def __init__(self, start: PlainRuns, directory: Path, trainers: Sequence[DemoTrainer]) -> None:
        """Prepare; ``start`` starts a script."""
        self._start, self._directory = start, directory
        self._waiting = list(trainers)
        self._running: PlainRun | None = None

    def advance(self, wait_s: float = 0.001) -> bool:
        """Start the next script when the last has ended; return whether all have."""
        if self._running is not None:
            if not self._running.has_ended(wait_s):
                return False
            self._running = None
        if not self._waiting:
            return True
        trainer = self._waiting.pop(0)
        own = self._directory / trainer.name
        own.mkdir(parents=True)
        environment = {"BFT_CHECKPOINT_DIR": str(own)}
        self._running = self._start(trainer.plain_arguments, environment, own / "log.txt")
        return False

    def finish(self, limit_s: float) -> None:
        """Run the rest; a script that takes too long has no result."""
        deadline = time.monotonic() + limit_s
        while not self.advance(1.0) and time.monotonic() < deadline:
            pass


def accuracy_in(directory: Path) -> float | None:
    """Return what a script wrote into its result.json, None if it did not."""
    try:
        return float(json.loads((directory / "result.json").read_text())["accuracy"])
    except (FileNotFoundError, ValueError):
        return None
