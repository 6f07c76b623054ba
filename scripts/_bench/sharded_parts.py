"""``bench_rescale --sharded``: models sharded over the two workers of a node.

In rounds: our sharded trainer, ours of a model that is as large as one shard, and torch's HSDP that
torchrun starts again, one after the other, while the others wait. Then the steps beside plain HSDP
in turns, and the memory of workers: while they train, write a checkpoint, send and receive their
state, and resume. Called by ``bench_rescale``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final

from _bench import memory, torchft
from _bench.benchmark import Measured, note
from _bench.rival import RivalPause
from _bench.sharded_arms import (
    CHANGES,
    ELASTIC,
    HSDP,
    KINDS,
    PER_NODE,
    WORKLOADS,
    Elastic,
    Hsdp,
    Pause,
)
from _bench.stats import ends_of_pairs, ratio_interval, tail
from _bench.steady import Blocks, Kind, compare

PAUSE_RATIO: Final = 1.5
TIMES_SHORTER: Final = 10.0
STEP_RATIO: Final = 1.02
MEMORY_RATIO: Final = 1.15
COPY_SHARE: Final = 0.75  # of a whole copy; one of a shard is half of it
NODES: Final = 2
PARTS: Final = ("rounds", "steps", "memory")
# Freed memory that processes keep would hide a copy (mallopt(3)).
GIVE_BACK: Final = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
MB: Final = 1e6
STILL_S: Final = attrgetter("still_s")
KIND: Final = Kind(
    elastic=ELASTIC.name,
    plain=HSDP.name,
    per_node=PER_NODE,
    changes={**CHANGES, "checkpoint_dir": ""},
)
# Parameters of the whole model and Adam's two averages, bytes.
WHOLE_BYTES: Final = {"large": 12 * (8 * (2048**2 + 2048) + 20_490)}
WHOLE_BYTES["light"] = 12 * (10 * (1024**2 + 1024) + 10_250)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """How much is measured."""

    rounds: int
    pairs: int
    block_steps: int
    large: str  # model whose memory is measured


FULL: Final = Amount(rounds=4, pairs=12, block_steps=5, large="large")
QUICK: Final = Amount(rounds=1, pairs=3, block_steps=3, large="light")


@dataclass(slots=True, kw_only=True)
class Found:
    """Everything measured."""

    pauses: dict[str, dict[str, list[list[Pause]]]]  # model -> kind -> round
    restarts: list[RivalPause] = field(default_factory=list)
    steps: Blocks | None = None
    large: Blocks | None = None
    peaks: dict[str, list[int]] = field(default_factory=dict)  # by moment, of each worker


def measure_sharded(
    parts: Sequence[str], amount: Amount, scratch: Path, measured: Measured
) -> None:
    """Measure these parts; what there is counts also when it is stopped."""
    result = Found(pauses={model: {} for model in ("sharded", "whole")})
    for rounds_of in result.pauses.values():
        rounds_of.update((kind, []) for kind in KINDS)
    try:
        if "rounds" in parts:
            asyncio.run(_rounds(scratch / "rounds", amount.rounds, result))
        if "steps" in parts:
            result.steps = _steady(scratch / "steady", "light", amount.pairs, amount.block_steps)
        if "memory" in parts:
            os.environ.update(GIVE_BACK)
            result.large = _steady(scratch / "large", amount.large, 1, 2)
            asyncio.run(_memory(scratch / "memory", amount.large, result))
    finally:
        _judge_pauses(result, measured)
        _judge_steps(result, measured)
        _judge_memory(amount.large, result, measured)
        measured.results["sharded"] = _results_of(result)


# ---- measuring -------------------------------------------------------------------------


async def _rounds(directory: Path, rounds: int, result: Found) -> None:
    arms = {model: Elastic(directory / model, model) for model in result.pauses}
    (directory / "hsdp").mkdir()

    async def begun(arm: Elastic) -> None:
        await arm.begin()
        await arm.turn.end(PER_NODE)

    async with AsyncExitStack() as stack:
        for arm in arms.values():
            await stack.enter_async_context(arm.plane)
        await asyncio.gather(*map(begun, arms.values()))
        hsdp = stack.enter_context(Hsdp(directory / "hsdp", "sharded"))
        await hsdp.begin()
        for number in range(rounds):
            for model, arm in list(arms.items())[:: 1 if number % 2 else -1]:
                for kind, values in (await arm.round()).items():
                    result.pauses[model][kind].append(values)
            result.restarts.append(await hsdp.round())
            note(f"round {number + 1} of {rounds}, load {os.getloadavg()[0]:.1f}")


def _steady(directory: Path, model: str, pairs: int, steps: int) -> Blocks:
    directory.mkdir()
    size = NODES * PER_NODE
    return asyncio.run(
        compare(directory, WORKLOADS, model, size, pairs=pairs, steps=steps, note=note, kind=KIND)
    )


async def _memory(directory: Path, model: str, result: Found) -> None:
    """Write a checkpoint, grow, park and resume; note the workers' peaks."""
    steps = 3
    arm = Elastic(directory, model)
    saved = directory / "checkpoints"

    def pids(generation: int) -> list[int]:
        return sorted(arm.recorder.of_generation(generation))

    async with arm.plane:
        first = await arm.resize(1, steps)
        await arm.plane.until(lambda: any(saved.glob("step-*")), "a checkpoint is written", 120.0)
        sources = pids(first)
        result.peaks["a checkpoint is written"] = [memory.peak_bytes(pid) for pid in sources]
        for pid in sources:
            memory.forget_peak(pid)
        second = await arm.resize(2, steps)
        result.peaks["a node joins: source"] = [memory.peak_bytes(pid) for pid in sources]
        joiners = [pid for pid in pids(second) if pid not in sources]
        result.peaks["a node joins: joiner"] = [memory.peak_bytes(pid) for pid in joiners]
        arm.plane.set_nodes([])
        await arm.plane.until(lambda: not arm.plane.is_busy(), "it is parked", 120.0)
        resumed = await arm.resize(1, steps)
        result.peaks["a checkpoint is loaded"] = [memory.peak_bytes(p) for p in pids(resumed)]
    note(f"memory of {model}")


# ---- judging ---------------------------------------------------------------------------


def _judge_pauses(result: Found, measured: Measured) -> None:
    sharded, whole = result.pauses["sharded"], result.pauses["whole"]
    rows = []
    for kind in KINDS:
        rounds = min(len(sharded[kind]), len(whole[kind]))
        if not rounds:
            continue
        ours, beside = sharded[kind][:rounds], whole[kind][:rounds]
        ratio, low, high = paired(_still_s(ours), _still_s(beside))
        measured.at_most(
            f"stand-still {kind}, sharded / whole of a shard's size",
            high,
            PAUSE_RATIO,
            "",
            f"upper end; ratio {ratio:.3g}, 95% in [{low:.3g}, {high:.3g}], {rounds} rounds",
            interval=ends_of_pairs(low, high, rounds),
        )
        rows.append((kind, *_cells(ours), *_cells(beside)))
    if rows:
        columns = ("still, median", "max", "pause, median", "max")
        headings = ("transition", "sharded: n", *columns, "whole: n", *columns)
        measured.table("the worst survivor, s", headings, rows)
    if result.restarts and sharded["SIGKILL"]:
        name, value = tail([p.pause_s for p in chain.from_iterable(sharded["SIGKILL"])])
        pauses = [p.pause_s for p in result.restarts]
        measured.at_least(
            "SIGKILL shorter than torchrun with HSDP and DCP",
            median(pauses) / max(value, 1e-3),
            TIMES_SHORTER,
            "",
            f"its median of {len(pauses)} / our {name}",
        )
        lost_steps = median(p.lost_steps for p in result.restarts)
        measured.tables.append(
            f"torchrun, HSDP and torch.distributed.checkpoint, SIGKILL: median {median(pauses):.2f}"
            f" s, {min(pauses):.2f} to {max(pauses):.2f}; {lost_steps:g} steps again\n"
            f"torchft beside sharded models: not measured ({torchft.why_not() or 'no workload'})"
        )


def paired(
    ours: Sequence[Sequence[float]], beside: Sequence[Sequence[float]]
) -> tuple[float, float, float]:
    """Return the median of the rounds' ratios of medians, with its 95% interval.

    What a busy machine does to one round it does to both.
    """
    ratios = [[median(a) / median(b)] for a, b in zip(ours, beside, strict=True)]
    return ratio_interval(ratios, [[1.0]] * len(ratios))


def _still_s(rounds: Sequence[Sequence[Pause]]) -> list[list[float]]:
    return [list(map(STILL_S, pauses)) for pauses in rounds]


def _cells(rounds: Sequence[Sequence[Pause]]) -> tuple[str, ...]:
    pauses = list(chain.from_iterable(rounds))
    cells = [str(len(pauses))]
    for values in (list(map(STILL_S, pauses)), [p.pause_s for p in pauses]):
        cells += [f"{median(values):.3f}", f"{max(values):.3f}"]
    return tuple(cells)


def _judge_steps(result: Found, measured: Measured) -> None:
    if result.steps is None:
        return
    ours, beside = result.steps.elastic, result.steps.plain
    ratio, low, high = paired(ours, beside)
    measured.at_most(
        "step / HSDP step",
        high,
        STEP_RATIO,
        "",
        f"upper end; ratio {ratio:.4f}, 95% in [{low:.4f}, {high:.4f}], {len(ours)} pairs",
        interval=ends_of_pairs(low, high, len(ours)),
    )
    step_s, plain_step_s = median(chain.from_iterable(ours)), median(chain.from_iterable(beside))
    measured.tables.append(
        f"{NODES} nodes, {PER_NODE} workers each: median step {1e3 * step_s:.1f} ms, HSDP"
        f" {1e3 * plain_step_s:.1f} ms"
    )


def _judge_memory(model: str, result: Found, measured: Measured) -> None:
    if result.large is None:
        return
    peaks_bytes, plain_bytes = result.large.peaks["elastic"], result.large.peaks["plain"]
    most_mb, plain_mb = max(peaks_bytes) / MB, max(plain_bytes) / MB
    measured.at_most(
        "peak memory of a worker / of HSDP",
        max(peaks_bytes) / max(plain_bytes),
        MEMORY_RATIO,
        "",
        f"worst of {len(peaks_bytes)}: {most_mb:.0f} and {plain_mb:.0f} MB",
    )
    rows = [("HSDP trains", f"{plain_mb:.0f}", ""), ("trains", f"{most_mb:.0f}", "")]
    for moment, peaks in result.peaks.items():
        more_bytes = max(peaks) - max(peaks_bytes)
        measured.at_most(
            f"{moment}: more than in training, of a whole copy",
            more_bytes / WHOLE_BYTES[model],
            COPY_SHARE,
            "",
            f"{more_bytes / MB:.0f} of {WHOLE_BYTES[model] / MB:.0f} MB",
        )
        rows.append((moment, f"{max(peaks) / MB:.0f}", f"{more_bytes / MB:.0f}"))
    measured.table("peak memory of a worker, MB", ("while", "peak", "more than training"), rows)


def _results_of(result: Found) -> dict[str, Any]:
    values = asdict(result)
    large = values.pop("large")
    return {**values, "training_peaks": None if large is None else large["peaks"]}
