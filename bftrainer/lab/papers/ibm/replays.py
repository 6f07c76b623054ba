"""One experiment with one seed: its setting and its record. Both are plain data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from bftrainer.lab.papers.ibm.jobs import (
    ELASTIC,
    GPUS_PER_MACHINE,
    Arrivals,
    IbmWorld,
    draw_jobs,
    read_world,
)
from bftrainer.lab.papers.ibm.simulator import Rules, Simulation
from bftrainer.lab.papers.paper import Extent, Scenario, read_expected

TABLES = read_expected(__package__)["tables"]
RESULTS = read_expected(__package__)["results"]
ORDERED, FREE = "ordered", "free"
BENCHMARK_MINUTES = 30.0  # every job of a benchmark of one category, section IV-A


@dataclass(frozen=True, slots=True, kw_only=True)
class IbmSeeds(Extent):
    """Numbers of seeds."""

    table3: int = 30
    table4: int = 6  # of 5,000 jobs each
    figures: int = 30
    sensitivity: int = 10
    mechanism: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityRow:
    """The assumptions that a row of the sensitivity table changes."""

    name: str = "as fitted"
    fit: str = ORDERED
    largest_batch_fits: bool = False
    network: float = 1.0  # factor on t_comm
    k_max: int = 10
    delta_min: float = 0.0  # 0: decisions at every event
    arrivals: tuple[float, float] | None = None  # high, low; None: the fit's
    overtakes: bool = True
    passes_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The setting of one run."""

    seed: int
    gpus: int = 40
    minutes: float = 720.0  # in which jobs arrive
    batch: str = ELASTIC  # or that of the baseline: random, max, min
    waits: bool = False
    change: SensitivityRow = SensitivityRow()
    # Of a benchmark with one category; None: all, with their own lengths and the fit's arrivals.
    category: int | None = None
    high: float = 0.0  # jobs per minute
    low: float = 0.0
    period_min: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRecord:
    """The figures of one experiment."""

    n_jobs: int
    sjs: float  # %
    drop_ratio: float  # %
    jct_min: float  # mean
    completed: int  # while jobs arrive


def play(_: None, run: Experiment) -> ExperimentRecord:
    """Play one experiment."""
    world, change = _world(run.change), run.change
    categories, arrivals = world.categories, _arrivals(world, run)
    if run.category is not None:
        categories = (replace(world.categories[run.category - 1], minutes=BENCHMARK_MINUTES),)
    jobs = draw_jobs(world, categories, arrivals, run.batch, run.seed)
    rules = Rules(
        gpus=run.gpus,
        waits=run.waits,
        delta_min=change.delta_min or None,
        overtakes=change.overtakes,
        passes_over=change.passes_over,
    )
    outcome = Simulation(jobs, rules).run()
    return ExperimentRecord(
        n_jobs=outcome.n_jobs,
        sjs=outcome.sjs,
        drop_ratio=outcome.drop_ratio,
        jct_min=float(outcome.completion_min.mean()),
        completed=int(np.searchsorted(outcome.ends_min, run.minutes, side="right")),
    )


def choose_scenario(*_: object) -> Scenario:
    """Return a pool of equal GPUs: what the paper does not say, and what speaks for ours."""
    world = read_world(ORDERED)
    elastic = world.categories[:3]  # the fourth has one size
    words = {
        "caps": ", ".join(str(category.cap) for category in world.categories),
        "fixed": ", ".join(f"{category.fixed:g}" for category in elastic),
        "comm": ", ".join(f"{category.comm:g}" for category in elastic),
        "between_machines": f"{world.between_machines:g}",
        "high": world.high,
        "low": world.low,
        "k_max": world.k_max,
    }
    remarks = []
    for template, why in TABLES["assumptions"]["rows"].items():
        remarks.append(f"Assumed {template.format(**words)}: {why}.")
    return Scenario(
        summary="The paper's discrete-event simulation (section III-E) of 40 and 400 GPUs, with "
        "the dynamic program of the policy ibm-dp.",
        document={"cluster": {"gpus_per_machine": GPUS_PER_MACHINE, "k_max": world.k_max}},
        remarks=remarks,
    )


def _world(change: SensitivityRow) -> IbmWorld:
    world = read_world(change.fit)
    categories = []
    for category in world.categories:
        cap = category.b_max if change.largest_batch_fits else category.cap
        categories.append(replace(category, comm=change.network * category.comm, cap=cap))
    return replace(world, categories=tuple(categories), k_max=change.k_max)


def _arrivals(world: IbmWorld, run: Experiment) -> Arrivals:
    if run.category is not None:
        return Arrivals(minutes=run.minutes, high=run.high, low=run.low, period_min=run.period_min)
    mean_min = sum(category.minutes for category in world.categories) / len(world.categories)
    high, low = run.change.arrivals or (world.high[run.gpus], world.low[run.gpus])
    per_min = run.gpus / mean_min  # one job per GPU and mean length
    return Arrivals(
        minutes=run.minutes, high=high * per_min, low=low * per_min, period_min=run.period_min
    )
