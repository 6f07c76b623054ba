#!/usr/bin/env python3
"""How long a rescale stops a training, beside other systems; and what a step costs.

Real processes, loopback; on CPUs with gloo, on GPUs (``--device cuda``) with what
``--backend`` says. Agents, server, books and journal are the daemon's own; only the plan comes
from here. *Pause*: from a survivor's last step before a change to its first one after, less the
usual step; of SIGKILL from the kill; the worst survivor counts. *Silent node* and so on: from
SIGSTOP, or the loss of the cable, to the others' next step. *Step*: both arms in turns, the ratio
of medians with a bootstrap interval. Other systems are set up to favour them: rendezvous in a
process of its own, shortest time-outs, snapshots on tmpfs, steps done again not counted.
Prints every target with ``met`` or ``missed``; exits 1 when one is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Final

from _bench import checking, mishaps, network, torchft, torchrun
from _bench.network import Network
from _bench.plane import JOIN_WINDOW_S, Plane
from _bench.rescale_found import (
    LEASE_S,
    Found,
    print_found,
    results_of,
    targets_of,
)
from _bench.rescaling import Rescaling
from _bench.restart import Restart
from _bench.rival import SNAPSHOT_STEPS, TIMEOUT_S, Rival, RivalError
from _bench.stats import ratio_interval
from _bench.steady import compare
from _bench.targets import Target, exit_code, print_targets, write_json
from _bench.torchft import Torchft
from _bench.torchrun import Torchrun
from _bench.waiting import BenchError

from bftrainer.elastic.choosing import BACKENDS
from bftrainer.policy.model import SitePolicy

WORKLOADS: Final = Path(__file__).resolve().parent / "workloads"
ELASTIC: Final = WORKLOADS / "rescale_elastic.py"
MODELS: Final = ("big", "small")
PARTS: Final = (
    *("check", "rescale", "silent", "stopped", "network", "resume"),
    *("torchft", "restart", "torchrun", "steady"),
)
SIZES: Final = (1, 2)
RIVALS: Final[dict[str, tuple[type[Rival], str]]] = {
    "torchrun": (Torchrun, "rescale_ddp.py"),
    "torchft": (Torchft, "rescale_torchft.py"),
    "restart": (Restart, "rescale_ddp.py"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured; the small model, unless asked for alone, for its steps only."""

    cycles: int
    losses: int
    resumes: int
    rival_cycles: int
    pairs: dict[str, int]
    block_steps: dict[str, int]


FULL: Final = Amount(
    cycles=20,
    losses=4,
    resumes=8,
    rival_cycles=1,
    pairs={"big": 20, "small": 100},
    block_steps={"big": 6, "small": 100},
)
QUICK: Final = Amount(
    cycles=4,
    losses=1,
    resumes=2,
    rival_cycles=1,
    pairs={"big": 6, "small": 40},
    block_steps={"big": 5, "small": 60},
)


# ---- measuring -----------------------------------------------------------------------


def plane_of(
    directory: Path,
    model: str,
    agents: int,
    *,
    policy: SitePolicy | None = None,
    own_network: Network | None = None,
) -> tuple[Plane, Path]:
    """Return a control plane with that many agents, and where its workers leave records."""
    records = directory / "records"
    records.mkdir(parents=True)
    environment = {"BENCH_RECORDS": str(records)}
    plane = Plane(
        directory,
        agents=agents,
        script=ELASTIC,
        model=model,
        environment=environment,
        policy=policy,
        network=own_network,
    )
    return plane, records


async def rescale(directory: Path, model: str, cycles: int, found: Found) -> None:
    """Measure our pauses; what there is counts also when it is stopped."""
    plane, records = plane_of(directory, model, agents=4)
    async with plane:
        rescaling = Rescaling(plane, records, lambda text: note(f"{model}: {text}"))
        try:
            await rescaling.run(cycles)
        finally:
            found.pauses = rescaling.pauses()
            found.warm_up_s = plane.warm_up_s


async def lose(directory: Path, model: str, kind: str, count: int, found: Found) -> None:
    """Measure what it takes to go on without a member of which nothing is heard any more."""
    policy = SitePolicy(
        heartbeat_s=LEASE_S / 8,
        agent_timeout_s=LEASE_S,
        worker_lease_s=LEASE_S,
        lease_s=60.0,
        join_window_s=JOIN_WINDOW_S,
        failure_budget=10_000,
    )
    why = network.why_not() if kind == "network" else ""
    if why:
        note(f"{kind}: {why}")
        return
    with network.Network() if kind == "network" else contextlib.nullcontext() as own:
        plane, records = plane_of(
            directory, model, agents=mishaps.MEMBERS, policy=policy, own_network=own
        )
        async with plane:
            mishap = mishaps.MISHAPS[kind]
            found.lost_s[kind] = await mishaps.losses(plane, records, count, mishap, note)


async def resume(directory: Path, model: str, count: int, found: Found) -> None:
    """Measure the way from parked to the first step."""
    plane, records = plane_of(directory, model, agents=1)
    async with plane:
        found.resume_s = await mishaps.resumes(plane, records, count, note)


def beside(directory: Path, model: str, part: str, cycles: int, found: Found) -> None:
    """Measure another system, or say why not."""
    kind, script = RIVALS[part]
    why = torchft.why_not() if kind is Torchft else ""
    if not why:
        directory.mkdir()
        try:
            with kind(
                directory, WORKLOADS / script, model, lambda text: note(f"{model}: {text}")
            ) as job:
                job.run(cycles, found.others)
        except RivalError as problem:
            why = f"stopped: {problem}"
    if why:
        found.missing[kind.name] = why
        note(f"{kind.name}: {why}")


def steady(directory: Path, model: str, size: int, amount: Amount, found: Found) -> None:
    """Measure the steps between rescales, beside plain DistributedDataParallel."""
    directory.mkdir()
    pairs, steps = amount.pairs[model], amount.block_steps[model]
    blocks = asyncio.run(
        compare(directory, WORKLOADS, model, size, pairs=pairs, steps=steps, note=note)
    )
    found.steps[size] = ratio_interval(blocks.elastic, blocks.ddp)
    found.step_s[size] = (_median_of(blocks.elastic), _median_of(blocks.ddp))


def _median_of(blocks: Iterable[Iterable[float]]) -> float:
    return median(v for block in blocks for v in block)


def measure(
    model: str, parts: Sequence[str], amount: Amount, scratch: Path, found: Found, *, only: bool
) -> None:
    """Measure everything for one model and say how it goes."""

    def rescaled(where: Path) -> None:
        asyncio.run(rescale(where, model, amount.cycles, found))

    def lost(kind: str, where: Path) -> None:
        asyncio.run(lose(where, model, kind, amount.losses, found))

    def checked(_where: Path) -> None:
        found.check_s = checking.check_s()

    actions: dict[str, Callable[[Path], None]] = {
        "check": checked,
        "rescale": rescaled,
        "resume": lambda where: asyncio.run(resume(where, model, amount.resumes, found)),
    }
    for kind in mishaps.MISHAPS:
        actions[kind] = partial(lost, kind)
    for part in (p for p in PARTS if p in parts and p != "steady"):
        if model == MODELS[0] or only:
            where = scratch / f"{model}-{part}"
            if part in RIVALS:
                beside(where, model, part, amount.rival_cycles, found)
            else:
                actions[part](where)
            note(f"{model}: {part} done, load {os.getloadavg()[0]:.1f}")
    for size in SIZES if "steady" in parts else ():
        steady(scratch / f"{model}-steady-{size}", model, size, amount, found)


def note(text: str) -> None:
    """Say where we are, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# ---- results -------------------------------------------------------------------------


def print_settings(amount: Amount) -> None:
    """Say what the others were given."""
    print(
        f"torchrun settings: {' '.join(torchrun.ARGUMENTS)};"
        f" environment {' '.join(f'{k}={v}' for k, v in torchrun.ENVIRONMENT.items())};"
        f" snapshot to tmpfs every {SNAPSHOT_STEPS} steps; rendezvous store in a process"
        f" of its own; no recovery within {TIMEOUT_S:g} s counts as that"
    )
    print(f"torchft settings: torchft_lighthouse {' '.join(torchft.LIGHTHOUSE)}")
    print(
        "control plane: the daemon's own AgentServer, TrainerBook, GenerationMachine and journal,"
        f" one real agent per node; {amount.cycles} cycles"
    )


def report(
    found: Mapping[str, Found], amount: Amount, options: argparse.Namespace, *, took_s: float
) -> list[Target]:
    """Print all that was measured, write it down, return the targets."""
    print_settings(amount)
    targets = []
    for model, one in found.items():
        print_found(model, one)
        targets += targets_of(model, one)
    print_targets("Targets", targets)
    load = os.getloadavg()[0]
    print(f"{took_s:.0f} s; load of the machine at the end {load:.1f}")
    if options.json:
        results = {
            "quick": options.quick,
            "device": options.device,
            "backend": options.backend,
            "took_s": took_s,
            "load": load,
            "torchrun_settings": [*torchrun.ARGUMENTS, torchrun.ENVIRONMENT],
            "torchft_settings": torchft.LIGHTHOUSE,
            "models": {model: results_of(one) for model, one in found.items()},
        }
        write_json(options.json, "rescale", results, targets)
    return targets


# ---- command line ----------------------------------------------------------------------


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="4 of each instead of 20")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    parser.add_argument("--models", default=",".join(MODELS), help="of: %(default)s")
    parser.add_argument("--parts", default=",".join(PARTS), help="of: %(default)s")
    parser.add_argument("--cycles", type=int, default=0, help="of our rescales")
    parser.add_argument("--rival-cycles", type=int, default=0, help="of each other system")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to train on")
    parser.add_argument(
        "--backend", choices=BACKENDS, default="auto", help="of our generations: %(choices)s"
    )
    options = parser.parse_args(argv)
    if options.device != "cpu":  # what is measured beside us is set up for CPUs
        options.parts = ",".join(p for p in options.parts.split(",") if p not in RIVALS)
    for given, known in ((options.models, MODELS), (options.parts, PARTS)):
        if unknown := set(given.split(",")) - set(known):
            parser.error(f"not known: {', '.join(sorted(unknown))}")
    return options


def amount_of(options: argparse.Namespace) -> Amount:
    """Return how much to measure."""
    amount = QUICK if options.quick else FULL
    given = {"cycles": options.cycles, "rival_cycles": options.rival_cycles}
    given = {name: count for name, count in given.items() if count}
    return replace(amount, **given) if given else amount


def main(argv: Sequence[str]) -> int:
    """Measure, print, judge; when stopped, say what there is so far."""
    options = parse(argv)
    amount = amount_of(options)
    models = options.models.split(",")
    # Agents hand on to workers what they were started with.
    os.environ.update(BENCH_DEVICE=options.device, BENCH_BACKEND=options.backend)
    signal.signal(signal.SIGTERM, _interrupt)
    logging.getLogger("bftrainer").setLevel(logging.ERROR)  # we kill workers on purpose
    started = time.monotonic()
    memory = Path("/dev/shm")  # noqa: S108 - tmpfs is the point; a private directory in it
    found: dict[str, Found] = {}
    stopped_by: BaseException | None = None
    with tempfile.TemporaryDirectory(
        prefix="bft-bench-", dir=memory if memory.is_dir() else None
    ) as scratch:
        os.environ.update(BENCH_LOCKS=scratch, BENCH_DDP_BACKEND=ddp_backend(options))
        try:
            for model in models:
                found[model] = Found()
                parts, only = options.parts.split(","), len(models) == 1
                measure(model, parts, amount, Path(scratch), found[model], only=only)
        except (BenchError, KeyboardInterrupt) as problem:
            stopped_by = problem
    targets = report(found, amount, options, took_s=time.monotonic() - started)
    if stopped_by is not None:
        note(f"not complete: {stopped_by or 'interrupted'}")
        return 1 if isinstance(stopped_by, BenchError) else 130
    return exit_code(targets)


def ddp_backend(options: argparse.Namespace) -> str:
    """Return what DistributedDataParallel is given: the best the machine has for it."""
    if options.device == "cpu" or options.backend == "gloo":
        return "gloo"
    import torch  # noqa: PLC0415 - only where there are GPUs

    return "nccl" if torch.cuda.device_count() >= max(SIZES) else "gloo"


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
