#!/usr/bin/env python3
"""Whether trainings end where they would have ended had nobody rescaled them.

Three models on real handwritten digits (the example scripts), several seeds each: run
at a fixed size, and with 30 rescales at random steps to random nodes under the daemon's
own control plane. Statistic: the mean accuracy of the rescaled runs may differ from
that of the fixed ones by no more than these spread over the seeds (largest minus
smallest, two of the 360 test samples at least). Exits 1 when it does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Final

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' control plane

from _bench.benchmark import Benchmark, Measured, note
from _bench.convergence import Outcome, Pair, fixed_run, outcomes_of, rescaled_run
from _bench.targets import Target, at_least, at_most

EPOCHS: Final = {"mlp": 30, "cnn": 15, "transformer": 30}
QUICK_EPOCHS: Final = 10
AT_ONCE: Final = 2
HEADINGS: Final = (
    "model", "runs", "rescales per run", "fixed: mean", "smallest to largest",
    "rescaled: mean", "smallest to largest", "difference", "spread",
)  # fmt: skip
BENCHMARK = Benchmark(
    name="convergence",
    title="Targets",
    about=__doc__,
    quick="1 model, 2 seeds, 6 rescales",
    options={
        "--models": {"default": "", "help": f"of: {','.join(EPOCHS)}"},
        "--seeds": {"type": int, "default": 0, "help": "of each model"},
        "--rescales": {"type": int, "default": 0, "help": "of a run"},
    },
)


async def train_all(
    models: Sequence[str], seeds: int, rescales: int, pairs: list[Pair], *, is_quick: bool
) -> None:
    """Train everything, two pairs at a time; what there is counts also when it is stopped.

    A rescaled run mostly waits for a joiner to get warm, which keeps one processor busy.
    """
    todo = [(model, seed) for model in models for seed in range(seeds)]

    async def work() -> None:
        while todo:
            model, seed = todo.pop(0)
            epochs = QUICK_EPOCHS if is_quick else EPOCHS[model]
            with tempfile.TemporaryDirectory(prefix="bft-bench-") as scratch:
                pairs.append(await _pair(Path(scratch), model, seed, epochs, rescales))

    workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        pairs.sort(key=lambda p: (list(EPOCHS).index(p.model), p.seed))


async def _pair(where: Path, model: str, seed: int, epochs: int, rescales: int) -> Pair:
    name = f"{model}, seed {seed}"
    fixed = await asyncio.to_thread(fixed_run, where / "fixed", model, seed, epochs)
    note(f"{name}: fixed {fixed:.4f}")
    rescaled, count = await rescaled_run(
        where / "rescaled", model, seed, epochs, rescales, lambda text: note(f"{name}: {text}")
    )
    note(f"{name}: rescaled {count} times {rescaled:.4f}")
    return Pair(
        model=model, epochs=epochs, seed=seed, fixed=fixed, rescaled=rescaled, rescales=count
    )


def targets_of(outcomes: Sequence[Outcome], rescales: int) -> list[Target]:
    """Return what is to be reached, with what was measured."""
    targets = []
    for o in outcomes:
        name = f"{o.model}: final accuracy, rescaled beside fixed"
        basis = f"means of {len(o.seeds)} seeds; spread of the fixed runs"
        targets.append(at_most(name, 100 * abs(o.difference), 100 * o.spread, "points", basis))
        name, basis = f"{o.model}: rescales in a run", f"fewest of {len(o.seeds)}"
        targets.append(at_least(name, min(o.rescales), rescales, "rescales", basis))
    return targets


def cells(o: Outcome) -> list[str]:
    """Return a model's line of the table; accuracies in percent."""

    def span(values: Sequence[float]) -> str:
        return f"{100 * min(values):.2f} to {100 * max(values):.2f}"

    return [
        o.model,
        f"{len(o.seeds)}",
        f"{min(o.rescales)}",
        f"{100 * mean(o.fixed):.2f} %",
        span(o.fixed),
        f"{100 * mean(o.rescaled):.2f} %",
        span(o.rescaled),
        f"{100 * o.difference:+.2f}",
        f"{100 * o.spread:.2f}",
    ]


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Train every model at a fixed size and with rescales."""
    logging.getLogger("bftrainer").setLevel(logging.ERROR)
    names = list(EPOCHS)[: 1 if options.quick else 3]
    models = options.models.split(",") if options.models else names
    seeds = options.seeds or (2 if options.quick else 5)
    rescales = options.rescales or (6 if options.quick else 30)
    pairs: list[Pair] = []
    try:
        asyncio.run(train_all(models, seeds, rescales, pairs, is_quick=options.quick))
    finally:
        outcomes = outcomes_of(pairs)
        measured.results["outcomes"] = [asdict(o) for o in outcomes]
        measured.targets += targets_of(outcomes, rescales)
        rows = [cells(o) for o in outcomes]
        measured.table("Final accuracy on 360 test samples", HEADINGS, rows)


if __name__ == "__main__":
    sys.exit(BENCHMARK.main(measure))
