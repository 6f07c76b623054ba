"""Fig. 8: completion time by the price of a worker, for two utility functions."""

from __future__ import annotations

from bftrainer.lab.papers.elasticity.replays import Dollars, OneJob, mean
from bftrainer.lab.papers.elasticity.setting import EXPECTED, ElasticitySeeds, seeds
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced
from bftrainer.lab.papers.paper import Records

PRICES_PER_H = (0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
UTILITIES = (100.0, 1000.0, 10_000.0)
SHAPES = ("linear", "step")
HIGH_RATIO = 1.1
START = 4


def _run(shape: str, most: float, price_per_h: float, seed: int) -> OneJob:
    dollars = Dollars(shape=shape, most=most, price_per_h=price_per_h)
    return OneJob(job="cpus", start=START, seed=seed, dollars=dollars)


def runs(extent: ElasticitySeeds) -> tuple[OneJob, ...]:
    """Return every utility at every price."""
    return tuple(
        _run(shape, most, price, seed)
        for shape in SHAPES
        for most in UTILITIES
        for price in PRICES_PER_H
        for seed in seeds(extent.jobs)
    )


def find(records: Records, extent: ElasticitySeeds) -> Reproduced:
    """Compare the dearest with the cheapest worker."""
    minutes = {
        (shape, most): tuple(
            mean([records[_run(shape, most, p, s)].completion_s / 60 for s in seeds(extent.jobs)])
            for p in PRICES_PER_H
        )
        for shape in SHAPES
        for most in UTILITIES
    }
    lines = []
    for shape in SHAPES:
        low, high = minutes[shape, UTILITIES[0]], minutes[shape, UTILITIES[-1]]
        lines.append(EXPECTED.line("fig8", shape, low[-1] / low[0]))
        ratio = high[-1] / high[0]
        lines.append(EXPECTED.line("fig8", f"{shape}, high", ratio, holds=ratio <= HIGH_RATIO))
    charts = tuple(
        Chart(
            name=f"fig8-{shape}",
            title=f"Completion time by price, {shape} utility",
            x_label="dollars per worker and hour",
            y_label="completion time (min)",
            plotted=tuple(
                Plotted(label=f"at most {most:,.0f} $", x=PRICES_PER_H, y=minutes[shape, most])
                for most in UTILITIES
            ),
        )
        for shape in SHAPES
    )
    return Reproduced(lines=tuple(lines), charts=charts)
