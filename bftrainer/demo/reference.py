"""The scripts of the trainers without bftrainer, for comparison: one after the other.

Each runs as ``python`` would run it, in a copy of the host's template, which has imported torch.
They end with the batch system at the latest.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from bftrainer.demo.trainers import DemoTrainer


class References:
    """A queue of scripts, one of which is running."""

    def __init__(self, template: Path, directory: Path, trainers: Sequence[DemoTrainer]) -> None:
        """Prepare; ``template`` is the socket of the host's template."""
        self._template, self._directory = template, directory
        self._waiting = list(trainers)
        self._running: socket.socket | None = None

    def advance(self, wait_s: float = 0.001) -> bool:
        """Start the next script when the last has ended; return whether all have."""
        if self._running is not None:
            self._running.settimeout(wait_s)
            try:
                self._running.recv(1)  # returns when the script ends
            except TimeoutError:
                return False
            self._running.close()
            self._running = None
        if not self._waiting:
            return True
        trainer = self._waiting.pop(0)
        own = self._directory / trainer.name
        own.mkdir(parents=True)
        run = {
            "argv": trainer.plain_arguments,
            "environment": {"BFT_CHECKPOINT_DIR": str(own)},
            "log": str(own / "log.txt"),
        }
        self._running = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._running.connect(str(self._template))
        self._running.send(json.dumps({"run": run}).encode())
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
