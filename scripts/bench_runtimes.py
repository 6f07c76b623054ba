#!/usr/bin/env python3
"""What a grow, a shrink and a loss cost under each runtime, side by side.

Real processes on loopback, sizes 2 and 3. *Pause*: from the last step of anybody at the old size
(from the kill) until everybody has done a step at the new one, less the usual step; so a restart
counts in full. *cold*: without warm joiners. *horovodrun*: the same script under Horovod's own
launcher, whose medians bound ours. ``--mpirun MPIRUN:PYTHON`` adds a program under another MPI's
launcher. Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Final

from _bench.benchmark import Benchmark, Measured, note
from _bench.choosing import names_in, refuse_unknown
from _bench.runtime_arms import ARMS, HOROVODRUN, TWO_MODELS, mpirun_arm
from _bench.runtime_beds import Arm, Horovodrun, PlaneBed
from _bench.runtime_cycles import FIRST_LEAVES, GROW, KINDS, LOSS, SHRINK, Cycles, Gap
from _bench.stats import tail
from _bench.targets import Target
from _bench.waiting import BenchError

LIMIT_S: Final[dict[str, dict[str, float]]] = {
    "torch": {GROW: 0.30, SHRINK: 0.10, FIRST_LEAVES: 0.10, LOSS: 0.50},
    "horovod": {GROW: 1.0},
    "mpi": {GROW: 0.50, SHRINK: 0.10, FIRST_LEAVES: 0.10, LOSS: 0.50},
}
CYCLES: Final = 10
QUICK_CYCLES: Final = 2
HOROVODRUN_CYCLES: Final = 2  # each takes it a minute, or two

Found = dict[str, list[Gap]]  # by arm and model


def measure(options: argparse.Namespace, measured: Measured) -> None:
    """Measure every arm."""
    logging.getLogger("bftrainer").setLevel(logging.ERROR)  # we kill workers on purpose
    memory = Path("/dev/shm")  # noqa: S108 - tmpfs is the point; a private directory in it
    found: Found = {}
    problems: dict[str, str] = {}
    with tempfile.TemporaryDirectory(
        prefix="bft-bench-", dir=memory if memory.is_dir() else None
    ) as scratch:
        try:
            measure_all(options, Path(scratch), found, problems)
        finally:
            measured.targets += targets_of(found)
            tabulate(found, measured)
            measured.tables += [f"{key}: {problem}" for key, problem in problems.items()]
            gaps = {key: [asdict(g) for g in some] for key, some in found.items()}
            measured.results |= {"problems": problems, "gaps": gaps}


async def measure_arm(arm: Arm, model: str, cycles: int, scratch: Path, gaps: list[Gap]) -> None:
    """Measure one arm with one model; what there is counts also when it fails."""
    directory = scratch / f"{arm.name.replace(', ', '-')}-{model}"
    records = directory / "records"
    records.mkdir(parents=True)
    title = f"{arm.name}, {model}"
    if arm.runtime:
        bed = PlaneBed.of(arm, model, directory, records)
        async with bed.plane:
            await _go(Cycles(bed, records, lambda text: note(f"{title}: {text}")), cycles, gaps)
    else:
        async with Horovodrun(arm, model, directory, records) as job:
            await _go(Cycles(job, records, lambda text: note(f"{title}: {text}")), cycles, gaps)


async def _go(measured: Cycles, cycles: int, gaps: list[Gap]) -> None:
    try:
        await measured.run(cycles)
    finally:
        gaps += measured.gaps


def measure_all(
    options: argparse.Namespace, scratch: Path, found: Found, problems: dict[str, str]
) -> None:
    """Fill in the gaps of every arm, and why arms have none or fewer."""
    wanted, models = names_in(options.arms), names_in(options.models)
    refuse_unknown(wanted, [name for arm in ARMS for name in (arm.runtime, arm.name) if name])
    refuse_unknown(models, sorted({model for arm in ARMS for model in arm.models}))
    others = [mpirun_arm(pair) for pair in options.mpirun]
    for arm in [*(a for a in ARMS if a.runtime in wanted or a.name in wanted), *others]:
        missing = arm.missing() or ("" if arm.runtime else Horovodrun.missing())
        if missing:
            problems[arm.name] = missing
            continue
        cycles = options.cycles or (QUICK_CYCLES if options.quick else CYCLES)
        for model in (m for m in arm.models if m in models):
            key = f"{arm.name}, {model}"
            gaps = found.setdefault(key, [])
            n = cycles if arm.runtime else min(cycles, HOROVODRUN_CYCLES)
            try:
                asyncio.run(measure_arm(arm, model, n, scratch, gaps))
            except BenchError as problem:
                problems[key] = str(problem)
            except KeyboardInterrupt:
                problems[key] = "interrupted"
                raise


def pauses(gaps: Sequence[Gap], kind: str) -> list[float]:
    """Return the pauses of one kind, s."""
    return [gap.pause_s for gap in gaps if gap.kind == kind]


def targets_of(found: Mapping[str, Sequence[Gap]]) -> list[Target]:
    """Return the targets: our limits, and Horovod's own launcher."""
    targets = []
    for key, gaps in found.items():
        arm, _, model = key.rpartition(", ")
        for kind, limit in LIMIT_S.get(arm, {}).items():
            if values := pauses(gaps, kind):
                name, value = tail(values)
                remark = f"{name} of {len(values)}"
                targets.append(_target(f"{key}: {kind}", value, limit, remark))
        others = found.get(f"{HOROVODRUN}, {model}", ()) if arm == "horovod" else ()
        for kind in KINDS:
            ours, theirs = pauses(gaps, kind), pauses(others, kind)
            if ours and theirs:
                remark = f"medians of {len(ours)} and {len(theirs)}"
                limit = median(theirs)
                targets.append(_target(f"{key}: {kind}, horovodrun's", median(ours), limit, remark))
    return targets


def _target(name: str, measured: float, limit: float, remark: str) -> Target:
    return Target(name=name, measured=measured, limit=limit, relation="<=", note=remark)


def tabulate(found: Mapping[str, Sequence[Gap]], measured: Measured) -> None:
    """Show one row per arm and model: median and worst of every kind."""
    rows = []
    for key, gaps in found.items():
        cells = []
        for kind in KINDS:
            values = pauses(gaps, kind)
            cells.append(f"{median(values):.3f} ({tail(values)[1]:.3f})" if values else "-")
        steps = f"{median(g.step_s for g in gaps):.4f}" if gaps else "-"
        lost = [g.lost_steps for g in gaps if g.kind == LOSS]
        n = str(len(pauses(gaps, SHRINK)))
        rows.append((key, n, *cells, steps, f"{median(lost):g}" if lost else "-"))
    headings = ("runtime, model", "n", *KINDS, "usual step", "steps redone")
    measured.table("pauses, s: median (p95, or max of few)", headings, rows)


NAMES: Final = ",".join(dict.fromkeys(arm.name for arm in ARMS if "," not in arm.name))
BENCHMARK = Benchmark(
    name="runtimes",
    title="Targets",
    about=__doc__,
    quick="2 cycles instead of 10",
    options={
        "--cycles": {"type": int, "metavar": "N", "help": "so many"},
        "--arms": {"default": NAMES, "help": "of: %(default)s; a runtime is all its arms"},
        "--mpirun": {
            "action": "append",
            "default": [],
            "metavar": "MPIRUN:PYTHON",
            "help": "also a program under this launcher, in an interpreter with mpi4py",
        },
        "--models": {"default": ",".join(TWO_MODELS), "help": "of: %(default)s"},
    },
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
