"""The three trainers of the demonstration: example scripts and their curves.

Makes their specs, and the command lines of the fixed-size runs. Called by ``run``.
"""

from __future__ import annotations

import getpass
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bftrainer.demo import paced
from bftrainer.errors import BftError, ExitCode, UsageError
from bftrainer.model.trainer import TrainerSpec
from milp.problem import Curve

SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTrainer:
    """An example script and its throughput curve."""

    name: str
    script: Path
    epochs: int
    ms_per_sample: float  # pace of a node, see ``paced``
    efficiency: float  # each doubling of the size brings 2 * efficiency times the throughput

    def curve(self) -> Curve:
        """Samples per second by size."""
        alone = 1000.0 / self.ms_per_sample
        return Curve(
            sizes=SIZES,
            samples_per_s=tuple(
                alone * (2.0 * self.efficiency) ** doublings for doublings in range(len(SIZES))
            ),
        )

    def spec(self, directory: Path, *, n_max: int) -> TrainerSpec:
        """Return what is submitted."""
        out = directory / self.name
        return TrainerSpec(
            name=self.name,
            user=getpass.getuser(),
            script=str(Path(paced.__file__).resolve()),
            args=(str(self.ms_per_sample), *self.plain_arguments()),
            cwd=str(directory),
            interpreter=sys.executable,
            n_min=1,
            n_max=n_max,
            epochs=self.epochs,
            checkpoint_dir=str(out),
            checkpoint_interval_s=2.0,
            curve=self.curve(),
        )

    def plain_arguments(self) -> tuple[str, ...]:
        """Return the interpreter's arguments for a run of its own."""
        return (str(self.script), "--epochs", str(self.epochs))


def demo_trainers(epochs: int) -> tuple[DemoTrainer, ...]:
    """Return a convolutional net, a transformer and an MLP.

    The first scales best and the last worst; what each learns in an epoch differs, too.
    """
    return tuple(
        DemoTrainer(
            name=name,
            script=_example(f"digits_{name}.py"),
            epochs=epochs,
            ms_per_sample=ms_per_sample,
            efficiency=efficiency,
        )
        for name, ms_per_sample, efficiency in (
            ("cnn", 1.0, 0.92),
            ("mlp", 1.0, 0.78),
            ("transformer", 1.0, 0.90),
        )
    )


def _example(name: str) -> Path:
    found = importlib.util.find_spec("trainers")
    roots = (found.submodule_search_locations if found else None) or []
    for root in roots:
        path = Path(root).resolve() / "examples" / name
        if path.is_file():
            return path
    raise BftError(
        "BFT-1023",
        f"The example script {name} is not installed.",
        "Run the demonstration from a checkout of the repository (make demo).",
        exit_code=ExitCode.NOT_FOUND,
    )


def require_extras() -> None:
    """Require the optional packages that the demonstration needs.

    Raises:
        UsageError: BFT-1021, naming what is missing.
    """
    needed: Sequence[str] = ("torch", "sklearn", "matplotlib")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            "BFT-1021",
            f"The demonstration needs {', '.join(missing)}, which this Python does not have.",
            "Install it with: pip install 'bftrainer[torch,demo]'",
        )
