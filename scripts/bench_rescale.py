#!/usr/bin/env python3
"""How long a rescale stops a training, beside elastic torchrun; and what a step costs.

Real processes, gloo, loopback. See ``docs/benchmarks.md`` for what each figure is.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final, Literal

from _bench import torchrun
from _bench.plane import Plane
from _bench.rescaling import KINDS, Pause, Rescaling
from _bench.stats import quantile, ratio_interval, tail
from _bench.steady import compare
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.torchrun import Torchrun, TorchrunPause
from _bench.waiting import BenchError
from rich.table import Table

WORKLOADS: Final = Path(__file__).resolve().parent / "workloads"
MODELS: Final = ("big", "small")
PARTS: Final = ("rescale", "torchrun", "steady")
SIZES: Final = (1, 2)
LIMIT_S: Final = {"1->2": 0.30, "2->4": 0.30, "4->2": 0.10, "rank 0 leaves": 0.10, "SIGKILL": 0.50}
TIMES_SHORTER: Final = {k: 3.0 if k == "SIGKILL" else 10.0 for k in KINDS}
STEP_RATIO: Final = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    cycles: int
    torchrun_cycles: dict[str, int]
    pairs: dict[str, int]
    block_steps: dict[str, int]


FULL: Final = Amount(
    cycles=30,
    torchrun_cycles={"big": 5, "small": 5},
    pairs={"big": 30, "small": 150},
    block_steps={"big": 10, "small": 150},
)
QUICK: Final = Amount(
    cycles=8,
    torchrun_cycles={"big": 1, "small": 0},
    pairs={"big": 8, "small": 60},
    block_steps={"big": 5, "small": 80},
)


@dataclass(slots=True, kw_only=True)
class Found:
    """Everything measured for one model."""

    pauses: list[Pause] = field(default_factory=list)
    warm_up_s: list[float] = field(default_factory=list)  # of joiners, while others train
    others: list[TorchrunPause] = field(default_factory=list)
    steps: dict[int, tuple[float, float, float]] = field(default_factory=dict)  # ratio, low, high
    step_s: dict[int, tuple[float, float]] = field(default_factory=dict)  # elastic, ddp

    def of(self, kind: str) -> list[float]:
        """Return our pauses of one kind."""
        return [p.pause_s for p in self.pauses if p.kind == kind]

    def of_others(self, kind: str) -> list[float]:
        """Return torchrun's pauses of one kind."""
        return [p.pause_s for p in self.others if p.kind == kind]


# ---- measuring -----------------------------------------------------------------------


async def rescale(
    directory: Path, model: str, cycles: int, found: Found, *, is_quick: bool
) -> None:
    """Measure our pauses; what there is counts also when it is stopped."""
    records = directory / "records"
    records.mkdir(parents=True)
    plane = Plane(
        directory,
        agents=4,
        script=WORKLOADS / "rescale_elastic.py",
        model=model,
        environment={"BENCH_RECORDS": str(records)},
    )
    async with plane:
        rescaling = Rescaling(plane, records, lambda text: note(f"{model}: {text}"))
        try:
            await rescaling.run(cycles, is_quick=is_quick)
        finally:
            found.pauses = rescaling.pauses()
            found.warm_up_s = plane.warm_up_s


def measure(model: str, parts: Sequence[str], amount: Amount, scratch: Path, found: Found) -> None:
    """Measure everything for one model and print each part as soon as it is there."""
    if "rescale" in parts:
        directory = scratch / f"{model}-rescale"
        asyncio.run(rescale(directory, model, amount.cycles, found, is_quick=amount is QUICK))
        print_targets(f"{model}: so far", targets_of(model, found))
    if "torchrun" in parts and amount.torchrun_cycles[model]:
        directory = scratch / f"{model}-torchrun"
        directory.mkdir()
        script = WORKLOADS / "rescale_ddp.py"
        with Torchrun(directory, script, model, lambda text: note(f"{model}: {text}")) as job:
            job.run(amount.torchrun_cycles[model], found.others)
        print_targets(f"{model}: so far", targets_of(model, found))
    for size in SIZES if "steady" in parts else ():
        directory = scratch / f"{model}-steady-{size}"
        directory.mkdir()
        blocks = asyncio.run(
            compare(
                directory,
                WORKLOADS,
                model,
                size,
                pairs=amount.pairs[model],
                steps=amount.block_steps[model],
                note=note,
            )
        )
        found.steps[size] = ratio_interval(blocks.elastic, blocks.ddp)
        found.step_s[size] = (_median_of(blocks.elastic), _median_of(blocks.ddp))


def _median_of(blocks: Iterable[Iterable[float]]) -> float:
    return median(v for block in blocks for v in block)


def note(text: str) -> None:
    """Say where we are, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---- results -------------------------------------------------------------------------


def targets_of(model: str, found: Found) -> list[Target]:
    """Return the targets of one model with what was measured."""
    targets = []
    for kind in KINDS:
        if pauses := found.of(kind):
            name, value = tail(pauses)
            targets.append(
                _target(f"{model}: pause {kind}", value, LIMIT_S[kind], f"{name} of {len(pauses)}")
            )
    for kind in KINDS:
        pauses, others = found.of(kind), found.of_others(kind)
        if pauses and others:
            name, value = tail(pauses)
            targets.append(
                _target(
                    f"{model}: {kind} shorter than torchrun",
                    median(others) / max(value, 1e-3),
                    TIMES_SHORTER[kind],
                    f"its median of {len(others)} / our {name}",
                    relation=">=",
                    unit="",
                )
            )
    for size, (ratio, low, high) in found.steps.items():
        targets.append(
            _target(
                f"{model}: step / DDP step, size {size}",
                high,
                STEP_RATIO,
                f"upper end; ratio {ratio:.4f}, 95% in [{low:.4f}, {high:.4f}]",
                unit="",
            )
        )
    return targets


def _target(
    name: str,
    measured: float,
    limit: float,
    remark: str,
    *,
    relation: Literal["<=", ">="] = "<=",
    unit: str = "s",
) -> Target:
    return Target(
        name=name, measured=measured, limit=limit, relation=relation, unit=unit, note=remark
    )


def print_pauses(model: str, found: Found) -> None:
    """Print the pauses of both, and the steps between them."""
    if found.pauses and all(found.of(kind) for kind in KINDS):
        _print_table(
            f"{model} model: pauses of the worst survivor, s",
            ("transition", "n", "median", "p95/max", "max", "usual step"),
            [[kind, *_own_cells(found, kind)] for kind in KINDS],
        )
        gaps = [p.gap_s for p in found.pauses if p.kind == "SIGKILL"]
        name, value = tail(gaps)
        print(
            "SIGKILL to the first committed step, nothing subtracted:"
            f" median {median(gaps):.3f} s, {name} {value:.3f} s"
        )
        warm = found.warm_up_s
        print(f"warm-up of a joiner, while the others train: median {median(warm):.2f} s")
    if found.others:
        _print_table(
            f"{model} model: the same under elastic torchrun, s",
            ("transition", "n", "median", "min", "max", "lost steps", "not recovered"),
            [[k, *_other_cells([p for p in found.others if p.kind == k])] for k in KINDS],
        )
    for size, (own_s, ddp_s) in found.step_s.items():
        print(
            f"{model} model, size {size}: median step {1e3 * own_s:.3f} ms,"
            f" DistributedDataParallel {1e3 * ddp_s:.3f} ms"
        )


def _print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(title=title, title_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left")
    for row in rows:
        table.add_row(*row)
    console().print(table)


def _own_cells(found: Found, kind: str) -> list[str]:
    mine = [p for p in found.pauses if p.kind == kind]
    values = [p.pause_s for p in mine]
    return [
        str(len(values)),
        f"{median(values):.3f}",
        f"{tail(values)[1]:.3f}",
        f"{max(values):.3f}",
        f"{median(p.step_s for p in mine):.4f}",
    ]


def _other_cells(others: Sequence[TorchrunPause]) -> list[str]:
    values = [p.pause_s for p in others]
    return [
        str(len(values)),
        f"{median(values):.2f}",
        f"{min(values):.2f}",
        f"{max(values):.2f}",
        f"{median(p.lost_steps for p in others):g}",
        str(sum(not p.has_recovered for p in others)),
    ]


def results_of(found: Found) -> dict[str, Any]:
    """Return everything measured for one model, for the JSON file."""
    return {
        "pauses": [asdict(p) for p in found.pauses],
        "warm_up_s": found.warm_up_s,
        "p95_s": {k: quantile(found.of(k), 0.95) for k in KINDS if found.of(k)},
        "torchrun": [asdict(p) for p in found.others],
        "step_ratio": {
            str(size): {"ratio": ratio, "low": low, "high": high}
            for size, (ratio, low, high) in found.steps.items()
        },
        "step_s": {
            str(size): {"elastic": own, "ddp": ddp} for size, (own, ddp) in found.step_s.items()
        },
    }


def print_settings(amount: Amount) -> None:
    """Say what torchrun was given."""
    print(
        f"torchrun settings: {' '.join(torchrun.ARGUMENTS)};"
        f" environment {' '.join(f'{k}={v}' for k, v in torchrun.ENVIRONMENT.items())};"
        f" snapshot to tmpfs every {torchrun.SNAPSHOT_STEPS} steps; rendezvous store in a process"
        f" of its own; no recovery within {torchrun.TIMEOUT_S:g} s counts as that"
    )
    print(
        "control plane: the daemon's own AgentServer, TrainerBook, GenerationMachine and journal,"
        f" one real agent per node; {amount.cycles} cycles"
    )


# ---- command line ----------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="8 of each instead of 30")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--models", default=",".join(MODELS), help="of: %(default)s")
    parser.add_argument("--parts", default=",".join(PARTS), help="of: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge; when stopped, say what there is so far."""
    options = parse(argv)
    amount = QUICK if options.quick else FULL
    signal.signal(signal.SIGTERM, _interrupt)
    logging.getLogger("bftrainer").setLevel(logging.ERROR)  # we kill workers on purpose
    started = time.monotonic()
    memory = Path("/dev/shm")  # noqa: S108 - tmpfs is the point; a private directory in it
    found: dict[str, Found] = {}
    stopped_by: BaseException | None = None
    with tempfile.TemporaryDirectory(
        prefix="bft-bench-", dir=memory if memory.is_dir() else None
    ) as scratch:
        try:
            for model in options.models.split(","):
                found[model] = Found()
                measure(model, options.parts.split(","), amount, Path(scratch), found[model])
        except (BenchError, KeyboardInterrupt) as problem:
            stopped_by = problem
    targets = report(found, amount, options, took_s=time.monotonic() - started)
    if stopped_by is not None:
        note(f"not complete: {stopped_by or 'interrupted'}")
        return 1 if isinstance(stopped_by, BenchError) else 130
    return exit_code(targets)


def report(
    found: Mapping[str, Found], amount: Amount, options: argparse.Namespace, *, took_s: float
) -> list[Target]:
    """Print all that was measured, write it down, return the targets."""
    print_settings(amount)
    targets = []
    for model, one in found.items():
        print_pauses(model, one)
        targets += targets_of(model, one)
    print_targets("Targets", targets)
    print(f"{took_s:.0f} s")
    if options.json:
        results = {
            "quick": options.quick,
            "took_s": took_s,
            "torchrun_settings": [*torchrun.ARGUMENTS, torchrun.ENVIRONMENT],
            "models": {model: results_of(one) for model, one in found.items()},
        }
        write_json(options.json, "rescale", results, targets)
    return targets


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
