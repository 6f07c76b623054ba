"""Table 1: ring all-reduce with and without placement, one fitted bandwidth each.

A step of n GPUs computes the n-th part of the batch and passes 2 (n - 1) / n of the gradients
through the slowest link.
"""

from __future__ import annotations

from collections.abc import Mapping

from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced
from bftrainer.lab.papers.paper import Extent, Records
from bftrainer.lab.papers.rubberband.setting import EXPECTED, means

BATCH = 1024
GRADIENT_BYTES = 4 * 25_557_032  # ResNet-50, 32-bit
LEAST_BANDWIDTH, MOST_BANDWIDTH = 1e8, 5e10  # bytes per second
NARROWINGS = 60  # of the bracket


def step_s(rate: float, gpus: int, bandwidth: float) -> float:
    """Return the time of a step.

    Args:
        rate: samples per second of one GPU.
        gpus: GPUs of the trial.
        bandwidth: bytes per second of the slowest link.
    """
    return BATCH / rate / gpus + sending_s(gpus, bandwidth)


def sending_s(gpus: int, bandwidth: float) -> float:
    """Return the time in which the gradients go round."""
    return 2.0 * (gpus - 1) / gpus * GRADIENT_BYTES / bandwidth


def fitted_bandwidth(rates: Mapping[int, float]) -> float:
    """Return the bandwidth whose largest relative deviation from measured rates is least.

    The rate of one GPU is given. Every deviation grows with the bandwidth, so it is the one at
    which the largest and the smallest are opposite.
    """
    low, high = LEAST_BANDWIDTH, MOST_BANDWIDTH
    for _ in range(NARROWINGS):
        middle = (low * high) ** 0.5
        found = deviations(rates, middle)
        low, high = (middle, high) if max(found) + min(found) < 0.0 else (low, middle)
    return low


def deviations(rates: Mapping[int, float], bandwidth: float) -> list[float]:
    """Return how far the model is from the measured rates of several GPUs, as shares."""
    return [
        BATCH / step_s(rates[1], gpus, bandwidth) / rate - 1.0
        for gpus, rate in rates.items()
        if gpus > 1
    ]


def measured(placed: str) -> dict[int, float]:
    """Return samples per second by GPUs of a row of Table 1."""
    sizes = EXPECTED.tables["table1"]["columns"]
    return dict(zip(sizes, (mean.value for mean in means("table1", placed)), strict=True))


def find(_: Records, __: Extent) -> Reproduced:
    """Compare the model with Table 1."""
    lines, plotted = [], []
    for name in ("placed", "scattered"):
        rates = measured(name)
        bandwidth = fitted_bandwidth(rates)
        ours = {gpus: BATCH / step_s(rates[1], gpus, bandwidth) for gpus in rates}
        lines += [
            EXPECTED.line(
                "table1", "rate", ours[gpus], paper=mean.value, name=name, spread=mean.spread,
                gpus=f"{gpus} GPUs" if gpus > 1 else "1 GPU, given to the model",
            )
            for gpus, mean in zip(rates, means("table1", name), strict=True)
        ]  # fmt: skip
        lines.append(EXPECTED.line("table1", name, ours[4] / ours[1]))
        lines.append(EXPECTED.line("table1", "bandwidth", bandwidth / 1e9, name=name))
        x = tuple(float(gpus) for gpus in rates)
        plotted.append(Plotted(label=name, x=x, y=tuple(ours.values())))
        plotted.append(
            Plotted(label=f"{name}, paper", x=x, y=tuple(rates.values()), is_papers=True)
        )
    chart = Chart(
        name="table1",
        title="Throughput with and without placement",
        x_label="GPUs",
        y_label="samples per second",
        plotted=tuple(plotted),
    )
    return Reproduced(lines=tuple(lines), charts=(chart,))
