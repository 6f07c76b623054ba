"""Section 5.4: U by network and by rescale cost (Figs. 15 and 16)."""

from __future__ import annotations

from bftrainer.lab.papers.bftrainer.replays import PaperReplay
from bftrainer.lab.papers.bftrainer.scenario import EXPECTED, Sweeps
from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.workloads import NETWORKS


def networks(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return a replay per network of Table 2, over the first hours."""
    return tuple(PaperReplay(workload=slug, hours=extent.networks_hours) for slug in NETWORKS)


def fig15(records: Records, extent: Sweeps) -> Reproduced:
    """U by network."""
    ours = {NETWORKS[run.workload].name: records[run].u for run in networks(extent)}
    least = min(ours.values())
    return Reproduced(
        lines=(
            EXPECTED.line("fig15", "AlexNet", ours["AlexNet"]),
            EXPECTED.line(
                "fig15", "DenseNet", ours["DenseNet"],
                why="cause not found: AlexNet agrees, networks that scale better lose less here; "
                "T_fwd 10 s or nodes at random change it by 1 point",
            ),
            EXPECTED.line(
                "fig15", "least", least, holds=least > 75.0,
                why="short of it by a fraction of a point: AlexNet's line",
            ),
        ),
        charts=(
            Chart(
                name="fig15",
                title=f"HPO by network, first {extent.networks_hours:g} h",
                x_label="",
                y_label="U (%)",
                plotted=(Plotted(label="ours", x=tuple(ours), y=tuple(ours.values())),),
                has_bars=True,
            ),
        ),
    )  # fmt: skip


def costs(extent: Sweeps) -> tuple[PaperReplay, ...]:
    """Return a replay per factor on the rescale costs."""
    return tuple(PaperReplay(cost_factor=factor) for factor in extent.cost_factors)


def fig16(records: Records, extent: Sweeps) -> Reproduced:
    """U against rescale cost."""
    ours = [records[run].u for run in costs(extent)]
    factors = extent.cost_factors
    growth = (100.0 - ours[-1]) / (100.0 - ours[0])
    is_less = growth < 0.5 * factors[-1] / factors[0]
    return Reproduced(
        lines=(
            EXPECTED.line("fig16", "loss", growth, holds=is_less),
            EXPECTED.line("fig16", "U", ours[-1], holds=ours == sorted(ours, reverse=True)),
        ),
        charts=(
            Chart(
                name="fig16",
                title="HPO: utilization efficiency and rescale cost, T_fwd 120 s",
                x_label="rescale cost (times 18 s up, 12 s down)",
                y_label="U (%)",
                plotted=(Plotted(label="ours", x=tuple(map(float, factors)), y=tuple(ours)),),
            ),
        ),
    )
