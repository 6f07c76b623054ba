"""Figs. 9 and 10: stragglers replaced, kept, and absent."""

from __future__ import annotations

from itertools import pairwise

from bftrainer.lab.papers.elasticity.replays import Slowed, mean
from bftrainer.lab.papers.elasticity.setting import EXPECTED, ElasticitySeeds, seeds
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, percent
from bftrainer.lab.papers.paper import Records

SLOWDOWNS = {"4x": 4.0, "2x": 2.0, "1.33x": 4.0 / 3.0}
MOST_LATE = 12.5  # %


def runs(extent: ElasticitySeeds) -> tuple[Slowed, ...]:
    """Return the runs of each slowdown with and without replacement, and without stragglers."""
    return tuple(
        run
        for seed in seeds(extent.stragglers)
        for run in (
            Slowed(slowdown=1.0, replaces=False, seed=seed),
            *(
                Slowed(slowdown=slowdown, replaces=replaces, seed=seed)
                for slowdown in SLOWDOWNS.values()
                for replaces in (False, True)
            ),
        )
    )


def find(records: Records, extent: ElasticitySeeds) -> Reproduced:
    """Compare completion times."""
    chosen = seeds(extent.stragglers)
    none = [records[Slowed(slowdown=1.0, replaces=False, seed=s)].completion_s for s in chosen]
    saved, late = dict[str, float](), dict[str, float]()
    by_name = dict[str, tuple[list[float], list[float]]]()
    for name, slowdown in SLOWDOWNS.items():
        kept, replaced = (
            [records[Slowed(slowdown=slowdown, replaces=r, seed=s)].completion_s for s in chosen]
            for r in (False, True)
        )
        by_name[name] = kept, replaced
        pairs = list(zip(kept, replaced, none, strict=True))
        saved[name] = percent(mean([1.0 - ours / its for its, ours, _ in pairs]))
        late[name] = percent(mean([ours / base - 1.0 for _, ours, base in pairs]))
    lines = [EXPECTED.line("fig10", name, value) for name, value in saved.items()]
    is_ordered = all(more > fewer > 0.0 for more, fewer in pairwise(saved.values()))
    lines.append(EXPECTED.line("fig10", "order", None, holds=is_ordered))
    worst = max(late.values())
    lines.append(EXPECTED.line("fig10", "late", worst, holds=worst <= MOST_LATE))
    bars = {
        "kept": [mean(kept) / 60 for kept, _ in by_name.values()],
        "replaced": [mean(replaced) / 60 for _, replaced in by_name.values()],
        "no stragglers": [mean(none) / 60] * len(by_name),
    }
    chart = Chart(
        name="fig10",
        title="Completion time with stragglers",
        x_label="slowdown",
        y_label="completion time (min)",
        plotted=tuple(Plotted(label=n, x=tuple(by_name), y=tuple(y)) for n, y in bars.items()),
        has_bars=True,
    )
    return Reproduced(lines=tuple(lines), charts=(chart,))


def lives(records: Records, extent: ElasticitySeeds) -> Reproduced:
    """Compare how long a straggler trains until its replacement does."""
    lines = []
    for name, slowdown in SLOWDOWNS.items():
        found = [
            life
            for seed in seeds(extent.stragglers)
            for life in records[Slowed(slowdown=slowdown, replaces=True, seed=seed)].lives_s
        ]
        life_s = mean(found)
        lines.append(EXPECTED.line("fig9", name, life_s, holds=60.0 <= life_s <= 120.0))
    return Reproduced(lines=tuple(lines))
