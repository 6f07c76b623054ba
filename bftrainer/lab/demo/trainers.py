"""The three trainers of the demonstration, with bftrainer and without."""

from __future__ import annotations

import getpass
import importlib.resources
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bftrainer.lab.demo.local_site import DemoSite, HasEnded
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


class References:
    """A queue of scripts without bftrainer, one of which is running."""

    def __init__(self, site: DemoSite, directory: Path, trainers: Sequence[DemoTrainer]) -> None:
        self._site, self._directory = site, directory
        self._waiting = list(trainers)
        self._has_ended: HasEnded = lambda _: True

    def advance(self, wait_s: float = 0.001) -> bool:
        """Start the next script when the last has ended; return whether all have."""
        if not self._has_ended(wait_s):
            return False
        self._has_ended = lambda _: True
        if not self._waiting:
            return True
        trainer = self._waiting.pop(0)
        own = self._directory / trainer.name
        own.mkdir(parents=True)
        environment = {"BFT_CHECKPOINT_DIR": str(own)}
        self._has_ended = self._site.run_plain(
            trainer.plain_arguments, environment, own / "log.txt"
        )
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
