"""``bench_rescale --hosts``: the same rescales where each node has a network of its own.

Four beds, one after the other: loopback; nodes behind a bridge, each with a network stack and a
cable of its own (``network``); the same with cables of 10 and of 1 Gbit/s. On each our trainer,
then torchrun. Its snapshots are in a tmpfs that all its nodes share: it loads them without a
network.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Final

from _bench.benchmark import Measured, note
from _bench.rescale_found import Found, results_of, targets_of
from _bench.rescale_parts import RIVALS, WORKLOADS, Amount, rescale
from _bench.rescaling import KINDS
from _bench.rival import RivalError
from _bench.stats import tail
from _bench.torchrun import Torchrun
from _bench.waiting import BenchError
from tests.support import network
from tests.support.network import Network

BEDS: Final = ("loopback", "hosts", "hosts at 10 Gbit/s", "hosts at 1 Gbit/s")
GBITS: Final = {BEDS[2]: 10.0, BEDS[3]: 1.0}  # of each cable; the others have no limit
# Parameters and momentum. Headers are not counted: tc-tbf(8) sees long segments with one each.
STATE_BYTES: Final = {"big": 8 * 25_202_698, "small": 8 * 10_074}
WIRE_S_PER_BYTE: Final = 8 / 1e9  # at 1 Gbit/s


def measure_hosts(model: str, amount: Amount, scratch: Path, measured: Measured) -> None:
    """Measure all beds; what there is counts also when it is stopped."""
    if why := network.why_not():
        raise BenchError(why)
    results = {bed: Found() for bed in BEDS}
    try:
        for number, bed in enumerate(BEDS):
            with _network(bed) as bed_network:
                where = scratch / f"bed-{number}"
                asyncio.run(rescale(where / "own", model, amount.cycles, results[bed], bed_network))
                _torchrun(where / "torchrun", model, amount.rival_cycles, results[bed], bed_network)
            note(f"{bed} done, load {os.getloadavg()[0]:.1f}")
    finally:
        _judge(model, results, measured)


def _network(bed: str) -> AbstractContextManager[Network | None]:
    if bed == BEDS[0]:
        return contextlib.nullcontext()
    return Network(f"{GBITS[bed]:g}gbit" if bed in GBITS else "")


def _torchrun(where: Path, model: str, cycles: int, found: Found, own: Network | None) -> None:
    where.mkdir()
    script = WORKLOADS / RIVALS["torchrun"][1]
    job = Torchrun(where, script, model, lambda text: note(f"{model}: {text}"))
    job.network = own
    try:
        with job:
            job.run(cycles, found.others)
    except RivalError as problem:
        found.missing[job.name] = f"stopped: {problem}"
        note(f"{job.name}: {problem}")


def _judge(model: str, found: dict[str, Found], measured: Measured) -> None:
    wire_s = STATE_BYTES[model] * WIRE_S_PER_BYTE
    for bed, result in found.items():
        limited_s = wire_s / GBITS.get(bed, math.inf)
        measured.targets += targets_of(f"{model}, {bed}", result, limited_s)
    measured.table(
        f"{model} model: pauses of the worst survivor, s",
        ("bed", "transition", "n", "median", "p95 or max", "usual step", "n", "torchrun, median"),
        [(bed, kind, *_cells(result, kind)) for bed, result in found.items() for kind in KINDS],
        left=2,
    )
    for bed, result in found.items():
        for system, why in result.missing.items():
            measured.tables.append(f"{bed}: {system}: {why}")
    measured.results["beds"] = {bed: results_of(result) for bed, result in found.items()}
    measured.results["wire_s"] = wire_s


def _cells(found: Found, kind: str) -> tuple[str, ...]:
    pauses = [p for p in found.pauses if p.kind == kind]
    rival_s = [p.pause_s for p in found.of_other("torchrun", kind)]
    values = [p.pause_s for p in pauses]
    figures = [median(values), tail(values)[1], median(p.step_s for p in pauses)] if pauses else []
    return (
        *(f"{len(pauses)}", *(f"{figure:.3f}" for figure in figures or [math.nan] * 3)),
        *(f"{len(rival_s)}", f"{median(rival_s):.2f}" if rival_s else "-"),
    )
