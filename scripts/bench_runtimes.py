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
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final

from _bench.machine import machine
from _bench.runtime_beds import WORKLOADS, Arm, Horovodrun, PlaneBed
from _bench.runtime_cycles import FIRST_LEAVES, GROW, KINDS, LOSS, SHRINK, Cycles, Gap
from _bench.stats import tail
from _bench.targets import Target, console, exit_code, print_targets, write_json
from _bench.waiting import BenchError
from rich.table import Table

import bftrainer
import trainers.examples
from bftrainer import process
from bftrainer.model.trainer import CheckpointContract, Launch

TWO_MODELS: Final = ("small", "big")
HOROVOD: Final = WORKLOADS / "runtime_horovod.py"
HOROVODRUN: Final = "horovodrun"
MPI: Final = WORKLOADS / "runtime_mpi.py"
ARMS: Final = (
    Arm(runtime="torch", needs="torch", models=TWO_MODELS, script=WORKLOADS / "rescale_elastic.py"),
    Arm(runtime="horovod", needs="horovod", models=TWO_MODELS, script=HOROVOD),
    Arm(
        runtime="horovod",
        label="horovod, cold",
        needs="horovod",
        models=TWO_MODELS,
        script=HOROVOD,
        environment=(("BFT_HOROVOD_WARM", "0"),),
    ),
    Arm(runtime="", label=HOROVODRUN, needs="horovod", models=TWO_MODELS, script=HOROVOD),
    Arm(runtime="mpi", needs="mpi4py", script=MPI),
    Arm(
        runtime="command",
        program=(sys.executable,),
        script=WORKLOADS / "runtime_command.py",
        contract=CheckpointContract(grace_s=20.0),
    ),
)
LIMIT_S: Final[dict[str, dict[str, float]]] = {
    "torch": {GROW: 0.30, SHRINK: 0.10, FIRST_LEAVES: 0.10, LOSS: 0.50},
    "horovod": {GROW: 1.0},
    "mpi": {GROW: 0.50, SHRINK: 0.10, FIRST_LEAVES: 0.10, LOSS: 0.50},
}
MPIRUN_SH: Final = Path(trainers.examples.__file__).with_name("mpirun.sh")
# All nodes are this host, and this may be root in a container.
ONE_HOST: Final = (
    ("MPIRUN_OPTIONS", ""),
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),  # Open MPI 4
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),  # Open MPI 5
    ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    ("PYTHONPATH", str(Path(bftrainer.__file__).resolve().parents[1])),
)
CYCLES: Final = 10
QUICK_CYCLES: Final = 2
HOROVODRUN_CYCLES: Final = 2  # each takes it a minute, or two

Found = dict[str, list[Gap]]  # by arm and model


# ---- measuring -----------------------------------------------------------------------


async def measure(arm: Arm, model: str, cycles: int, scratch: Path, gaps: list[Gap]) -> None:
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


def measure_all(options: argparse.Namespace, scratch: Path) -> tuple[Found, dict[str, str]]:
    """Return the gaps of every arm, and why arms have none or fewer."""
    found: Found = {}
    problems: dict[str, str] = {}
    wanted, models = options.arms.split(","), options.models.split(",")
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
                asyncio.run(measure(arm, model, n, scratch, gaps))
            except BenchError as problem:
                problems[key] = str(problem)
            except KeyboardInterrupt:
                problems[key] = "interrupted"
                return found, problems
    return found, problems


def note(text: str) -> None:
    """Say where we are, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---- results -------------------------------------------------------------------------


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


def mpirun_arm(pair: str) -> Arm:
    """Return what measures a program under ``MPIRUN:PYTHON``, resized by restart."""
    mpirun, _, python = pair.partition(":")
    argv = (python, "-c", "from mpi4py import MPI; print(*MPI.get_vendor())")
    done = process.run(argv, timeout_s=30.0)
    if not done.is_ok:
        raise BenchError(f"{python} has no MPI: {done.stderr[-300:]}")
    return Arm(
        runtime="command",
        label=f"mpirun of {done.stdout.strip()}",
        script=MPI,
        program=(str(MPIRUN_SH), python),
        environment=(("MPIRUN", mpirun), *ONE_HOST),
        contract=CheckpointContract(grace_s=20.0, launch=Launch.FIRST),
    )


def _target(name: str, measured: float, limit: float, remark: str) -> Target:
    return Target(name=name, measured=measured, limit=limit, relation="<=", note=remark)


def print_pauses(found: Mapping[str, Sequence[Gap]], problems: Mapping[str, str]) -> None:
    """Print one row per arm and model: median and worst of every kind."""
    table = Table(title="pauses, s: median (p95, or max of few)", title_justify="left")
    for i, heading in enumerate(("runtime, model", "n", *KINDS, "usual step", "steps redone")):
        table.add_column(heading, justify="right" if i else "left")
    for key, gaps in found.items():
        cells = []
        for kind in KINDS:
            values = pauses(gaps, kind)
            cells.append(f"{median(values):.3f} ({tail(values)[1]:.3f})" if values else "-")
        steps = f"{median(g.step_s for g in gaps):.4f}" if gaps else "-"
        lost = [g.lost_steps for g in gaps if g.kind == LOSS]
        n = str(len(pauses(gaps, SHRINK)))
        table.add_row(key, n, *cells, steps, f"{median(lost):g}" if lost else "-")
    console().print(table)
    for key, problem in problems.items():
        print(f"{key}: {problem}")


# ---- command line ----------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="2 cycles instead of 10")
    parser.add_argument("--cycles", type=int, metavar="N", help="so many")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    names = ",".join(dict.fromkeys(arm.name for arm in ARMS if "," not in arm.name))
    parser.add_argument("--arms", default=names, help="of: %(default)s; a runtime is all its arms")
    parser.add_argument(
        "--mpirun",
        action="append",
        default=[],
        metavar="MPIRUN:PYTHON",
        help="also a program under this launcher, in an interpreter with mpi4py and its MPI",
    )
    parser.add_argument("--models", default=",".join(TWO_MODELS), help="of: %(default)s")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge."""
    options = parse(argv)
    logging.getLogger("bftrainer").setLevel(logging.ERROR)  # we kill workers on purpose
    memory = Path("/dev/shm")  # noqa: S108 - tmpfs is the point; a private directory in it
    signal.signal(signal.SIGTERM, _interrupt)  # clean up
    load = os.getloadavg()[0]
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="bft-bench-", dir=memory if memory.is_dir() else None
    ) as scratch:
        found, problems = measure_all(options, Path(scratch))
    print(f"{machine()}; load {load:.1f} before, {os.getloadavg()[0]:.1f} after")
    print_pauses(found, problems)
    targets = targets_of(found)
    print_targets("Targets", targets)
    print(f"{time.monotonic() - started_s:.0f} s")
    if options.json:
        results: dict[str, Any] = {
            "load_before": load,
            "problems": problems,
            "gaps": {key: [asdict(g) for g in gaps] for key, gaps in found.items()},
        }
        write_json(options.json, "runtimes", results, targets)
    return exit_code(targets)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
