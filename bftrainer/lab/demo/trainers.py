"""The three trainers of the demonstration, with bftrainer and without.

Each runs as ``python`` would run it; a site starts them. They end with the site at the latest.
"""

from __future__ import annotations

import getpass
import importlib.resources
import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bftrainer.batch import process
from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve

EPOCHS = 6
SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTrainer:
    """An example script and its throughput curve."""

    name: str
    script: Path
    efficiency: float  # each doubling of the size brings 2 * efficiency times the throughput

    @property
    def plain_arguments(self) -> tuple[str, ...]:
        """The script and its arguments."""
        return (str(self.script), "--epochs", str(EPOCHS))

    def spec(self, directory: Path, *, n_nodes: int) -> TrainerSpec:
        """Return what is submitted.

        A larger cluster has slower nodes, so that the demonstration takes as long on it.
        """
        ms_per_sample = 0.6 * n_nodes
        speeds = [(2.0 * self.efficiency) ** doublings for doublings in range(len(SIZES))]
        return TrainerSpec(
            name=self.name,
            user=getpass.getuser(),
            script=str(Path(__file__).resolve().with_name("pace.py")),
            args=(str(ms_per_sample), *self.plain_arguments),
            cwd=str(directory),
            interpreter=sys.executable,
            n_min=1,
            n_max=n_nodes,
            epochs=EPOCHS,
            checkpoint_dir=str(directory / self.name),
            checkpoint_interval_s=2.0,
            curve=Curve(
                sizes=SIZES, samples_per_s=tuple(1000.0 / ms_per_sample * s for s in speeds)
            ),
        )


def demo_trainers() -> tuple[DemoTrainer, ...]:
    """Return a convolutional net, which scales best, an MLP, which scales worst, a transformer.

    Raises:
        UsageError: BFT-1021, a package is missing.
    """
    needed = ("torch", "sklearn", "matplotlib")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        raise UsageError(
            "BFT-1021",
            f"The demonstration needs {', '.join(missing)}, which this Python does not have.",
            "Install it with: pip install 'bftrainer[torch,demo]'",
        )
    examples = Path(str(importlib.resources.files("trainers.examples")))
    return tuple(
        DemoTrainer(name=name, script=examples / f"digits_{name}.py", efficiency=efficiency)
        for name, efficiency in (("cnn", 0.92), ("mlp", 0.78), ("transformer", 0.90))
    )


class PlainRun(Protocol):
    """A script that runs."""

    def has_ended(self, wait_s: float) -> bool:
        """Wait that long for its end; return whether it has ended."""


class PlainRuns(Protocol):
    """A function that starts scripts without bftrainer."""

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
