"""The regimes of ``bench_regimes``: small pools, curves and costs in which policies differ.

Pools are drawn from a seed, or read: every file in the folder ``spot`` of ``$BFTRAINER_DATA`` is a
trace of spot instances, in any format of ``bftrainer trace``. All trainers are there from the
start.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, make_fragments
from bftrainer.batch.traces.read import read_trace
from bftrainer.lab.simulator.physical import MEASURED, PhysicalCosts, constant
from bftrainer.lab.workloads import NETWORKS, Submission
from milp.problem import Curve
from milp.tables import rate_at

DATA_VARIABLE: Final = "BFTRAINER_DATA"

# Bursts: a few nodes stay; others come together and leave in two groups.
STAYING_NODES, BURST_NODES, LEAST_BURST = 8, 40, 8
BURST_APART_S, BURST_LENGTH_S, LEAST_LENGTH_S = 1200.0, 480.0, 60.0
BURST_HOURS: Final = 12.0
# Spells: nodes come together, and leave one by one.
SPELL_NODES, SPELL_APART_S, MOST_SPELL = 48, 300.0, 16
SPELL_HOURS: Final = 2.0
# Gaps: every node comes and goes by itself.
GAP_NODES, GAP_S, LEAST_GAP_S, BUSY_S = 24, 90.0, 30.0, 180.0
GAP_HOURS: Final = 0.6

TRAINERS, MOST_NODES, SMALL_TRAINERS = 12, 32, 60
GAP_TRAINERS: Final = 4  # on eight nodes
LONG_S: Final = BURST_HOURS * HOUR_S  # at its best rate, so that no trainer ends
DIVERSE_SAMPLES: Final = 30e6  # of each trainer: about half of them end

LINEAR_SIZES: Final = (1, 2, 4, 8, 16, 32)
SHUFFLENET: Final = NETWORKS["shufflenet"].curve
FLAT: Final = Curve(sizes=(1, 2, 4, 8, 16), samples_per_s=(1000.0, 1500.0, 1800.0, 1900.0, 1950.0))
SERIAL_SHARE: Final = 0.12
AMDAHL: Final = Curve(
    sizes=LINEAR_SIZES,
    samples_per_s=tuple(1000.0 / (SERIAL_SHARE + (1 - SERIAL_SHARE) / n) for n in LINEAR_SIZES),
)
SUPERLINEAR: Final = Curve(
    sizes=LINEAR_SIZES, samples_per_s=(1000.0, 2300.0, 5300.0, 12000.0, 27000.0, 61000.0)
)
# A model that fits into the memory of 8 and of 16 nodes only.
CLIFFS: Final = Curve(
    sizes=(1, 7, 8, 15, 16, 32),
    samples_per_s=(100.0, 700.0, 8000.0, 9000.0, 20000.0, 24000.0),
)


Draw = Callable[[int, float], Fragments]  # of a seed and of the share of the usual hours


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A pool, trainers and costs; the seed draws the pool, and the trainers where they differ."""

    name: str
    pool: Draw
    trainers: Callable[[int], tuple[Submission, ...]]  # of a seed
    costs: PhysicalCosts = MEASURED


def bursts(seed: int, share: float = 1.0) -> Fragments:
    """Return 48 nodes: 8 stay, 8 to 40 more come together every 20 minutes for about 8."""
    chance = random.Random(f"bursts {seed}")  # noqa: S311 - a pool, reproducible by its seed
    end_s = BURST_HOURS * share * HOUR_S
    rows: list[tuple[int, float, float]] = [(k, 0.0, end_s) for k in range(STAYING_NODES)]
    at_s = chance.expovariate(1.0 / BURST_APART_S)
    while at_s < end_s:
        size = chance.randint(LEAST_BURST, BURST_NODES)
        groups = (range(size // 2), range(size // 2, size))
        last_s = at_s
        for group in groups:
            until_s = at_s + LEAST_LENGTH_S
            until_s += chance.expovariate(1.0 / (BURST_LENGTH_S - LEAST_LENGTH_S))
            until_s = min(until_s, end_s)
            rows += [(STAYING_NODES + k, at_s, until_s) for k in group if until_s > at_s]
            last_s = max(last_s, until_s)
        # The next one comes after all have left: a node is idle once at a time.
        at_s = max(at_s + chance.expovariate(1.0 / BURST_APART_S), last_s + LEAST_LENGTH_S)
    return _fragments(STAYING_NODES + BURST_NODES, rows, end_s)


def spells(seed: int, share: float = 1.0) -> Fragments:
    """Return 48 nodes: 4 to 16 come together every 5 minutes and leave one by one in about 8."""
    chance = random.Random(f"spells {seed}")  # noqa: S311 - a pool, reproducible by its seed
    end_s = SPELL_HOURS * share * HOUR_S
    rows: list[tuple[int, float, float]] = []
    busy_from_s = [-LEAST_LENGTH_S] * SPELL_NODES
    at_s = chance.expovariate(1.0 / SPELL_APART_S)
    while at_s < end_s:
        free = [k for k, last_s in enumerate(busy_from_s) if last_s + LEAST_LENGTH_S <= at_s]
        for node in free[: chance.randint(MOST_SPELL // 4, MOST_SPELL)]:
            until_s = at_s + LEAST_LENGTH_S
            until_s += chance.expovariate(1.0 / (BURST_LENGTH_S - LEAST_LENGTH_S))
            busy_from_s[node] = until_s
            rows.append((node, at_s, min(until_s, end_s)))
        at_s += chance.expovariate(1.0 / SPELL_APART_S)
    return _fragments(SPELL_NODES, rows, end_s)


def gaps(seed: int, share: float = 1.0) -> Fragments:
    """Return 24 nodes, each idle for about 90 s at a time and busy for about 180 s between."""
    chance = random.Random(f"gaps {seed}")  # noqa: S311 - a pool, reproducible by its seed
    end_s = GAP_HOURS * share * HOUR_S
    rows: list[tuple[int, float, float]] = []
    for node in range(GAP_NODES):
        at_s = chance.uniform(0.0, BUSY_S)
        while at_s < end_s:
            until_s = at_s + LEAST_GAP_S + chance.expovariate(1.0 / (GAP_S - LEAST_GAP_S))
            rows.append((node, at_s, min(until_s, end_s)))
            at_s = until_s + LEAST_GAP_S + chance.expovariate(1.0 / (BUSY_S - LEAST_GAP_S))
    return _fragments(GAP_NODES, rows, end_s)


def _fragments(n_nodes: int, rows: list[tuple[int, float, float]], end_s: float) -> Fragments:
    node, start_s, stop_s = zip(*rows, strict=True)
    return make_fragments(
        names=[f"n{k:03d}" for k in range(n_nodes)],
        node=node,
        start_s=start_s,
        end_s=stop_s,
        span_s=(0.0, end_s),
    )


def mean_join_gap_s(pool: Fragments) -> float:
    """Return the mean time between two instants at which nodes join, s; the first look is one."""
    joins = sum(len(joined) > 0 for _, joined, _ in pool.pool_changes())
    return pool.duration_s / max(1, joins)


def alike(
    curve: Curve, costs: PhysicalCosts, n_trainers: int = TRAINERS, n_max: int = MOST_NODES
) -> Callable[[int], tuple[Submission, ...]]:
    """Return equal trainers, whatever the seed."""
    samples = LONG_S * max(curve.samples_per_s)

    def trainers(_seed: int) -> tuple[Submission, ...]:
        return tuple(_trainer(f"t{k:02d}", curve, costs, n_max, samples) for k in range(n_trainers))

    return trainers


def of_few_nodes(_seed: int) -> tuple[Submission, ...]:
    """Return sixty trainers, every other one of one node, the others of one or two."""
    return tuple(
        _trainer(f"t{k:02d}", SHUFFLENET, MEASURED, 1 + k % 2, LONG_S * rate_at(SHUFFLENET, 2))
        for k in range(SMALL_TRAINERS)
    )


def diverse(seed: int) -> tuple[Submission, ...]:
    """Return trainers of all networks of Table 2, in an order drawn from the seed, that end."""
    chance = random.Random(f"diverse {seed}")  # noqa: S311 - a workload, reproducible by its seed
    networks = [list(NETWORKS.values())[k % len(NETWORKS)] for k in range(2 * TRAINERS)]
    chance.shuffle(networks)
    made = (
        _trainer(f"t{k:02d}", network.curve, MEASURED, MOST_NODES, DIVERSE_SAMPLES)
        for k, network in enumerate(networks)
    )
    pairs = zip(made, networks, strict=True)
    return tuple(replace(trainer, network=network.name) for trainer, network in pairs)


def _trainer(
    name: str, curve: Curve, costs: PhysicalCosts, n_max: int, samples: float
) -> Submission:
    return Submission(
        submit_s=0.0,
        name=name,
        n_min=1,
        n_max=n_max,
        samples=samples,
        curve=curve,
        rescale_up_s=costs.pause_up.mean_s,
        rescale_down_s=costs.pause_down.mean_s,
    )


def pausing(seconds: float) -> PhysicalCosts:
    """Return the measured costs with pauses of that many seconds."""
    pause = constant(seconds)
    return replace(MEASURED, pause_up=pause, pause_down=pause, pause_loss=pause)


def starting(seconds: float) -> PhysicalCosts:
    """Return the measured costs with that many seconds from request to first step."""
    return replace(MEASURED, warm_up=constant(seconds - MEASURED.claim.mean_s))


def synthetic() -> tuple[Regime, ...]:
    """Return the regimes whose pools are drawn from a seed."""

    def on(
        name: str,
        pool: Draw,
        curve: Curve,
        costs: PhysicalCosts = MEASURED,
    ) -> Regime:
        trainers = alike(curve, costs, GAP_TRAINERS if pool is gaps else TRAINERS)
        return Regime(name=name, pool=pool, trainers=trainers, costs=costs)

    return (
        on("start 180 s", bursts, SHUFFLENET, starting(180.0)),
        Regime(name="60 of 1-2 nodes", pool=bursts, trainers=of_few_nodes),
        on("superlinear", bursts, SUPERLINEAR),
        on("cliffs", bursts, CLIFFS),
        on("flat", bursts, FLAT),
        on("amdahl 12%", bursts, AMDAHL),
        on("pauses 300 s", bursts, SHUFFLENET, pausing(300.0)),
        on("pauses 120 s", bursts, SHUFFLENET, pausing(120.0)),
        on("pauses 60 s", bursts, SHUFFLENET, pausing(60.0)),
        on("spells, pauses 300 s", spells, SHUFFLENET, pausing(300.0)),
        on("spells, pauses 120 s", spells, SHUFFLENET, pausing(120.0)),
        on("spells, pauses 60 s", spells, SHUFFLENET, pausing(60.0)),
        on("gaps 90 s", gaps, SHUFFLENET),
        on("gaps 90 s, pauses 30 s", gaps, SHUFFLENET, pausing(30.0)),
        on("gaps 90 s, start 90 s", gaps, SHUFFLENET, starting(90.0)),
        Regime(name="diverse", pool=bursts, trainers=diverse),
    )


def spot() -> Iterator[Regime]:
    """Yield a regime for every trace of spot instances that is there; none: see ``why_no_spot``."""
    for path in sorted(_spot_folder().glob("*")):
        yield Regime(
            name=f"spot {path.name.partition('.')[0]}",
            pool=_OfFile(path=path),
            trainers=alike(SHUFFLENET, MEASURED),
        )


def why_no_spot() -> str:
    """Return why no trace of spot instances is played; "": there are some."""
    if not os.environ.get(DATA_VARIABLE):
        return f"{DATA_VARIABLE} is not set"
    folder = _spot_folder()
    return "" if any(folder.glob("*")) else f"{folder} has no files"


def _spot_folder() -> Path:
    return Path(os.environ.get(DATA_VARIABLE) or os.devnull) / "spot"


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfFile:
    """A part of a trace; a seed chooses when it begins."""

    path: Path

    def __call__(self, seed: int, share: float) -> Fragments:
        """Return it."""
        whole = read_trace(self.path)
        hours = min(BURST_HOURS * share, whole.duration_s / HOUR_S)
        chance = random.Random(f"spot {seed}")  # noqa: S311 - a part, reproducible by its seed
        spare_s = int(whole.duration_s - hours * HOUR_S)
        start_s = whole.span_s[0] + chance.randint(0, spare_s)
        return whole.restrict(start_s=start_s, hours=hours)
