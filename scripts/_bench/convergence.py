"""Trains an example script at a fixed size, and the same one rescaled at random steps.

A model, a seed and a number of rescales come in; final accuracies go out. The fixed run
is the script run plainly; the rescaled one is moved between nodes by the daemon's own
control plane. Called by ``bench_convergence``.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Final

from _bench.waiting import BenchError, wait_until_async
from bftrainer.batch import process
from tests.support.plane import Plane

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLES: Final = ROOT / "trainers" / "examples"
WORKLOAD: Final = ROOT / "scripts" / "workloads" / "convergence.py"
NODES: Final = 4
SAMPLES: Final = 1437  # of the digits, for training
BATCH: Final = 64
TEST_SAMPLES: Final = 360
TIMEOUT_S: Final = 300.0
FREE: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same training with one seed, fixed and rescaled."""

    model: str
    epochs: int
    seed: int
    fixed: float
    rescaled: float
    rescales: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One model's final accuracies, by seed."""

    model: str
    epochs: int
    seeds: tuple[int, ...]
    fixed: tuple[float, ...]
    rescaled: tuple[float, ...]
    rescales: tuple[int, ...]

    @property
    def spread(self) -> float:
        """Largest minus smallest accuracy of the fixed runs; two test samples at least."""
        return max(max(self.fixed) - min(self.fixed), 2 / TEST_SAMPLES)

    @property
    def difference(self) -> float:
        """Mean of the rescaled runs minus mean of the fixed ones."""
        return mean(self.rescaled) - mean(self.fixed)


def outcomes_of(pairs: Sequence[Pair]) -> list[Outcome]:
    """Put the pairs of each model together."""
    outcomes = []
    for model in dict.fromkeys(p.model for p in pairs):
        mine = [p for p in pairs if p.model == model]
        outcomes.append(
            Outcome(
                model=model,
                epochs=mine[0].epochs,
                seeds=tuple(p.seed for p in mine),
                fixed=tuple(p.fixed for p in mine),
                rescaled=tuple(p.rescaled for p in mine),
                rescales=tuple(p.rescales for p in mine),
            )
        )
    return outcomes


def fixed_run(directory: Path, model: str, seed: int, epochs: int) -> float:
    """Train at the fixed size of one worker; returns the accuracy."""
    directory.mkdir(parents=True)
    script = EXAMPLES / f"digits_{model}.py"
    run = process.run(
        [sys.executable, str(script), "--seed", str(seed), "--epochs", str(epochs)],
        timeout_s=TIMEOUT_S,
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1", "BFT_CHECKPOINT_DIR": ""},
    )
    if not run.is_ok:
        raise BenchError(f"{script.name} failed: {run.stderr[-800:]}")
    return _accuracy(directory / "result.json")


async def rescaled_run(
    directory: Path, model: str, seed: int, epochs: int, count: int, note: Callable[[str], None]
) -> tuple[float, int]:
    """Train with ``count`` random rescales; returns the accuracy and how many there were."""
    (directory / "checkpoints").mkdir(parents=True)
    limit = _Limit(directory / "limit")
    plane = Plane(
        directory,
        agents=NODES,
        script=WORKLOAD,
        model=model,
        environment={
            "BENCH_LIMIT": str(limit.path),
            "BENCH_MODEL": model,
            "BENCH_ARGUMENTS": f"--seed {seed} --epochs {epochs} --batch-size {BATCH}",
        },
    )
    chance = random.Random(f"{model} {seed}")  # noqa: S311 - a schedule, no secret
    steps = epochs * -(-SAMPLES // BATCH)
    # The last ones must be over before the training is.
    places = sorted(chance.sample(range(1, steps * 9 // 10), count))
    async with plane:
        held_nodes = [chance.choice(plane.all_nodes())]
        plane.set_nodes(held_nodes)
        await plane.until(plane.rescales, "the first generation")
        for number, place in enumerate(places):
            limit.raise_to(place)
            held_nodes = _other_nodes(held_nodes, plane.all_nodes(), chance)
            await _rescale(plane, held_nodes, limit)
            if number % 10 == 9:
                note(f"{number + 1} rescales")
        rescales = len(plane.rescales()) - 1
        limit.raise_to(FREE)
        accuracy = await _result(directory / "checkpoints" / "result.json")
    return accuracy, rescales


class _Limit:
    """The step up to which a run may go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.step = 0
        path.write_bytes(bytes(8))

    def raise_to(self, step: int) -> None:
        self.step = max(self.step, step)
        with self.path.open("r+b") as file:  # eight bytes at once: never half of it
            file.write(self.step.to_bytes(8, "little"))


def _other_nodes(held: Sequence[str], nodes: Sequence[str], chance: random.Random) -> list[str]:
    """Return other nodes than these, at least one of them kept."""
    while True:
        other_nodes = chance.sample(nodes, chance.randint(1, len(nodes)))
        if set(other_nodes) != set(held) and set(other_nodes) & set(held):
            return other_nodes


async def _rescale(plane: Plane, nodes: Sequence[str], limit: _Limit) -> None:
    """Move the trainer to these nodes, at the step where it stands or soon after."""
    before, warm = len(plane.rescales()), len(plane.warm_up_s)
    joiners = set(nodes) - {node for _, node in plane.members()}
    plane.set_nodes(nodes)
    await plane.until(lambda: len(plane.warm_up_s) >= warm + len(joiners), "joiners are warm")

    def is_done() -> bool:
        if {n for _, n in plane.members()} == set(nodes) and len(plane.rescales()) > before:
            return True
        limit.raise_to(limit.step + 1)  # members switch between two steps
        return False

    await plane.until(is_done, f"a rescale to {len(nodes)} nodes", TIMEOUT_S)


async def _result(path: Path) -> float:
    await wait_until_async(
        lambda: _is_written(path), path.name, patience_s=TIMEOUT_S, interval_s=0.05
    )
    return _accuracy(path)


def _is_written(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("}")


def _accuracy(path: Path) -> float:
    return float(json.loads(path.read_text())["accuracy"])
