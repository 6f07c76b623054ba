"""What copies of a lone trainer's state cost and how old they are; called by ``bench_state``.

Copying is switched on and off in turns, so that what disturbs the machine disturbs both; then the
agent of the only node is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from _bench.benchmark import note
from _bench.plane import Plane
from _bench.stats import ratio_interval
from bftrainer.elastic.protocol import Copied

SCRIPT = Path(__file__).resolve().parents[1] / "workloads" / "state_sgd.py"
SETTLING_S = 1.0  # of each block: the memory for snapshots is got or given back


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """One size of state."""

    size_mb: int
    copies: int
    step_ms: float  # median without copies
    step_ratio: tuple[float, float, float]  # with over without, 95 % interval
    hold_ms: float  # median: the training stands still
    share: float  # of the training's time, by the holds
    send_s: float  # median
    age_s: float  # oldest that the newest copy ever was
    loss_s: float  # training lost with the node
    resumed_from: str  # the holder puts a copy on disk while the next worker starts


async def copies(size_mb: int, block_s: float, blocks: int) -> Copies:
    """Measure one size of state, in blocks of ``block_s``."""
    note(f"{size_mb} MB")
    with tempfile.TemporaryDirectory(prefix="bench-state-") as name:
        directory = Path(name)
        (directory / "steps").mkdir()
        plane = Plane(
            directory,
            agents=2,
            script=SCRIPT,
            model=str(size_mb),
            environment={"BENCH_STEPS": str(directory / "steps")},
        )
        async with plane:
            plane.set_nodes(["n0"])
            await plane.until(plane.members, "it trains", 120.0)
            spans = await _in_turns(plane, block_s, blocks)
            loss_s, source = await _lose_the_node(plane, directory)
            return _summary(size_mb, directory, spans, plane, loss_s, source)


async def _in_turns(
    plane: Plane, block_s: float, blocks: int
) -> dict[bool, list[tuple[float, float]]]:
    """Switch copying on and off; returns when which was so, without the settling."""
    spans: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for is_on in (False, True) * blocks:
        plane.keeps_copies = is_on
        await asyncio.sleep(SETTLING_S)
        began_s = time.monotonic()
        await asyncio.sleep(block_s)
        spans[is_on].append((began_s, time.monotonic()))
    return spans


async def _lose_the_node(plane: Plane, directory: Path) -> tuple[float, str]:
    """Kill the node between two copies; returns the training lost, and the source."""
    count = len(plane.copied)
    await plane.until(lambda: len(plane.copied) > count, "a copy")
    await asyncio.sleep(1.5)
    plane.kill_node("n0")
    known = len(plane.rescales())
    plane.trainers.on_agent_lost("p0")
    plane.set_nodes(["n1"])
    await plane.until(lambda: len(plane.rescales()) > known, "it is back", 120.0)
    back = plane.rescales()[-1]
    before = dict(_steps(directory)[0])
    return max(before.values()) - before.get(back.step, 0.0), back.resumed_from


def _steps(directory: Path) -> list[list[tuple[int, float]]]:
    """Return the steps of each worker, the first that began first."""
    found = []
    for path in (directory / "steps").iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        found.append([(int(line[0]), float(line[1])) for line in lines if len(line) == 2])
    return sorted((steps for steps in found if steps), key=lambda steps: steps[0][1])


def _summary(
    size_mb: int,
    directory: Path,
    spans: dict[bool, list[tuple[float, float]]],
    plane: Plane,
    loss_s: float,
    source: str,
) -> Copies:
    times = [at_s for _, at_s in _steps(directory)[0]]
    pairs = list(itertools.pairwise(times))

    def blocks(*, is_on: bool) -> list[list[float]]:
        # The mean of a block: a hold comes once in many steps, and no median sees it.
        inside = [[b - a for a, b in pairs if lo <= a and b <= hi] for lo, hi in spans[is_on]]
        return [[sum(steps) / len(steps)] for steps in inside]

    done = [(at_s, c) for at_s, c in plane.copied if not c.refused]
    ages = [_worst_age(done, span) for span in spans[True]]
    without = [b - a for a, b in pairs if any(lo <= a <= hi for lo, hi in spans[False])]
    holds = [c.hold_s for _, c in done]
    return Copies(
        size_mb=size_mb,
        copies=len(done),
        step_ms=1000.0 * median(without),
        step_ratio=ratio_interval(blocks(is_on=True), blocks(is_on=False)),
        hold_ms=1000.0 * median(holds),
        share=sum(holds) / sum(c.gap_s for _, c in done),
        send_s=median(c.wall_s for _, c in done),
        age_s=max(ages),
        loss_s=loss_s,
        resumed_from="from memory" if source.startswith("copy on") else "from disk",
    )


def _worst_age(done: list[tuple[float, Copied]], span: tuple[float, float]) -> float:
    """Return how old the newest complete copy got, from the first one in a span on."""
    inside = [(at_s, at_s - copy.wall_s) for at_s, copy in done if span[0] <= at_s <= span[1]]
    ends = [at_s for at_s, _ in inside[1:]] + [span[1]]
    ages = [end_s - taken_s for (_, taken_s), end_s in zip(inside, ends, strict=False)]
    return max(ages, default=span[1] - span[0])
