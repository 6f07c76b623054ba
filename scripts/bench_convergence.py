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
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from types import FrameType
from typing import Final

from _bench.convergence import Outcome, Pair, fixed_run, outcomes_of, rescaled_run
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.waiting import BenchError
from rich.table import Table

EPOCHS: Final = {"mlp": 30, "cnn": 15, "transformer": 30}
QUICK_EPOCHS: Final = 10
AT_ONCE: Final = 2
HEADINGS: Final = (
    "model", "runs", "rescales per run", "fixed: mean", "smallest to largest",
    "rescaled: mean", "smallest to largest", "difference", "spread",
)  # fmt: skip


async def measure(
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


def note(text: str) -> None:
    """Say where we are, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def targets_of(outcomes: Sequence[Outcome], rescales: int) -> list[Target]:
    """Return what is to be reached, with what was measured."""
    targets = []
    for o in outcomes:
        targets += [
            Target(
                name=f"{o.model}: final accuracy, rescaled beside fixed",
                measured=100 * abs(o.difference),
                limit=100 * o.spread,
                relation="<=",
                unit="points",
                note=f"means of {len(o.seeds)} seeds; spread of the fixed runs",
            ),
            Target(
                name=f"{o.model}: rescales in a run",
                measured=min(o.rescales),
                limit=rescales,
                relation=">=",
                unit="rescales",
                note=f"fewest of {len(o.seeds)}",
            ),
        ]
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


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print the table."""
    table = Table(title="Final accuracy on 360 test samples", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for o in outcomes:
        table.add_row(*cells(o))
    console().print(table)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="1 model, 2 seeds, 6 rescales")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--models", default="", help=f"of: {','.join(EPOCHS)}")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--rescales", type=int, default=0)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    options = parse(argv)
    logging.getLogger("bftrainer").setLevel(logging.ERROR)
    models = (
        options.models.split(",") if options.models else list(EPOCHS)[: 1 if options.quick else 3]
    )
    seeds = options.seeds or (2 if options.quick else 5)
    rescales = options.rescales or (6 if options.quick else 30)
    started = time.monotonic()
    signal.signal(signal.SIGTERM, _interrupt)
    pairs: list[Pair] = []
    stopped_by: BaseException | None = None
    try:
        asyncio.run(measure(models, seeds, rescales, pairs, is_quick=options.quick))
    except (BenchError, KeyboardInterrupt) as problem:
        stopped_by = problem
    outcomes = outcomes_of(pairs)
    targets = targets_of(outcomes, rescales)
    print_outcomes(outcomes)
    print_targets("Targets", targets)
    print(f"{time.monotonic() - started:.0f} s")
    if options.json:
        results = {
            "quick": options.quick,
            "took_s": time.monotonic() - started,
            "outcomes": [asdict(o) for o in outcomes],
        }
        write_json(options.json, "convergence", results, targets)
    if stopped_by is not None:
        note(f"not complete: {stopped_by or 'interrupted'}")
        return 1 if isinstance(stopped_by, BenchError) else 130
    return exit_code(targets)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
