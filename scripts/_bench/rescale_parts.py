"""The parts of ``bench_rescale``: what is measured for one model, and how much of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from _bench import checking, mishaps, torchft
from _bench.benchmark import note
from _bench.rescale_found import LEASE_S, Found
from _bench.rescaling import Rescaling
from _bench.rival import Rival, RivalError
from _bench.stats import ratio_interval
from _bench.steady import compare
from _bench.torchft import Torchft
from _bench.torchrun import Torchrun
from bftrainer.site.policy.model import SitePolicy
from tests.support import network
from tests.support.network import Network
from tests.support.plane import JOIN_WINDOW_S, Plane

WORKLOADS: Final = Path(__file__).resolve().parents[1] / "workloads"
ELASTIC: Final = WORKLOADS / "rescale_elastic.py"
MODELS: Final = ("big", "small")
PARTS: Final = (
    *("check", "rescale", "silent", "stopped", "network", "resume"),
    *("torchft", "torchrun", "steady"),
)
SIZES: Final = (1, 2)
RIVALS: Final[dict[str, tuple[type[Rival], str]]] = {
    "torchrun": (Torchrun, "rescale_ddp.py"),
    "torchft": (Torchft, "rescale_torchft.py"),
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


async def rescale(
    directory: Path, model: str, cycles: int, found: Found, own_network: Network | None = None
) -> None:
    """Measure our pauses; what there is counts also when it is stopped."""
    plane, records = plane_of(directory, model, agents=4, own_network=own_network)
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
    with network.Network() if kind == "network" else contextlib.nullcontext() as bed_network:
        plane, records = plane_of(
            directory, model, agents=mishaps.MEMBERS, policy=policy, own_network=bed_network
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
    found.steps[size] = ratio_interval(blocks.elastic, blocks.plain)
    found.step_s[size] = (_median_of(blocks.elastic), _median_of(blocks.plain))


def _median_of(blocks: Iterable[Iterable[float]]) -> float:
    return median(v for block in blocks for v in block)


def measure_model(
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
