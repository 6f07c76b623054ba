"""Figs. 5, 6 and 8: one category, 240 minutes, jobs completed in that time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, percent
from bftrainer.lab.papers.ibm.jobs import ELASTIC
from bftrainer.lab.papers.ibm.replays import BENCHMARK_MINUTES, Experiment
from bftrainer.lab.papers.ibm.setting import EXPECTED, IbmSeeds, seeds
from bftrainer.lab.papers.paper import Records

HIGH = 10.0 / BENCHMARK_MINUTES  # jobs per minute: k_max times the base rate, section IV-A
LOW = HIGH / 4.0
MINUTES = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """One picture: what arrives, and the baseline's batch."""

    category: int = 1
    batch: str = "random"
    high: float = HIGH
    low: float = HIGH
    period_min: float = MINUTES

    def runs(self, extent: IbmSeeds, *, is_elastic: bool) -> tuple[Experiment, ...]:
        one = Experiment(
            seed=0,
            minutes=MINUTES,
            batch=ELASTIC if is_elastic else self.batch,
            category=self.category,
            high=self.high,
            low=self.low,
            period_min=self.period_min,
        )
        return tuple(replace(one, seed=seed) for seed in seeds(extent.figures))


FIG5: Mapping[str, _Pattern] = {
    "a": _Pattern(),
    "b": _Pattern(category=2),
    "c": _Pattern(category=3),
    "d": _Pattern(category=4),
}
FIG6: Mapping[str, _Pattern] = {
    "a": _Pattern(high=LOW, low=LOW),
    "b": _Pattern(low=LOW, period_min=60.0),
}
FIG8: Mapping[str, _Pattern] = {
    "max": _Pattern(batch="max"),
    "min, high": _Pattern(batch="min"),
    "min, low": _Pattern(batch="min", high=LOW, low=LOW),
}


def _runs(patterns: Mapping[str, _Pattern], extent: IbmSeeds) -> tuple[Experiment, ...]:
    return tuple(
        run
        for pattern in patterns.values()
        for is_elastic in (True, False)
        for run in pattern.runs(extent, is_elastic=is_elastic)
    )


def fig5_runs(extent: IbmSeeds) -> tuple[Experiment, ...]:
    """Return the categories."""
    return _runs(FIG5, extent)


def fig6_runs(extent: IbmSeeds) -> tuple[Experiment, ...]:
    """Return low and bursty arrivals."""
    return _runs(FIG6, extent)


def fig8_runs(extent: IbmSeeds) -> tuple[Experiment, ...]:
    """Return the largest and the smallest batch."""
    return _runs(FIG8, extent)


def fig5(records: Records, extent: IbmSeeds) -> Reproduced:
    """Jobs completed beside the baseline, by category; none is gained without elasticity."""
    gains = {name: _gain(records, extent, one, "completed") for name, one in FIG5.items()}
    pairs = zip(
        FIG5["d"].runs(extent, is_elastic=True),
        FIG5["d"].runs(extent, is_elastic=False),
        strict=True,
    )
    is_same = all(records[ours] == records[other] for ours, other in pairs)
    lines = [
        EXPECTED.line("fig5", name, gain, holds=is_same if name == "d" else gain > 0.0)
        for name, gain in gains.items()
    ]
    published = [EXPECTED.results["fig5"][name]["value"] for name in gains]
    x = tuple(f"category {one.category}" for one in FIG5.values())
    return Reproduced(
        lines=tuple(lines),
        charts=(
            Chart(
                name="fig5",
                title="Jobs completed beside the baseline, high arrivals, 40 GPUs",
                x_label="",
                y_label="more jobs (%)",
                plotted=(
                    Plotted(label="ours", x=x, y=tuple(gains.values())),
                    Plotted(label="paper", x=x, y=tuple(published), is_papers=True),
                ),
                has_bars=True,
            ),
        ),
    )


def fig6(records: Records, extent: IbmSeeds) -> Reproduced:
    """The same by pattern of arrivals."""
    gains = {name: _gain(records, extent, one, "completed") for name, one in FIG6.items()}
    return Reproduced(
        lines=tuple(EXPECTED.line("fig6", n, gain, holds=gain > 0.0) for n, gain in gains.items())
    )


def fig8(records: Records, extent: IbmSeeds) -> Reproduced:
    """The same with the largest and the smallest batch."""
    most = _gain(records, extent, FIG8["max"], "completed")
    least = _gain(records, extent, FIG8["min, high"], "completed")
    few = _gain(records, extent, FIG8["min, low"], "completed")
    shorter = -_gain(records, extent, FIG8["min, low"], "jct_min")
    return Reproduced(
        lines=(
            EXPECTED.line("fig8", "max", most, holds=most > 0.0),
            EXPECTED.line("fig8", "min, high", least, holds=abs(least) < 25.0),
            EXPECTED.line("fig8", "min, low", few, holds=few > 0.0),
            EXPECTED.line("fig8", "min, low: JCT", shorter, holds=shorter > 0.0),
        )
    )


def _gain(records: Records, extent: IbmSeeds, pattern: _Pattern, measure: str) -> float:
    """Return by how many percent elastic batches have more, of the means over seeds."""
    ours, other = (
        np.mean([getattr(records[run], measure) for run in pattern.runs(extent, is_elastic=which)])
        for which in (True, False)
    )
    return percent(float(ours / other) - 1.0)
