"""Contradictions between numbers of the paper: no model can give all of them."""

from __future__ import annotations

from bftrainer.lab.papers.findings import Reproduced, ValueLine
from bftrainer.lab.papers.paper import Extent, Records
from bftrainer.lab.papers.rubberband.profiles import measured
from bftrainer.lab.papers.rubberband.setting import (
    EXPECTED,
    GPUS_PER_INSTANCE,
    MINUTE_S,
    PRICE_H,
    RESNET101,
    TABLE_3,
    WARM_POOL,
    means,
)

HOUR_S = 3600.0
MOST_GPUS = 16  # of a trial
TWICE = "both are the paper's own numbers: no model can give both"


def paid_instances(row: str) -> float:
    """Return for how many instances, on the average, a row of Table 2 pays."""
    time, cost = means("table2", row)[:2]
    return cost.value / PRICE_H * HOUR_S / (time.value * MINUTE_S)


def most_instances() -> float:
    """Return how many instances the plan of Table 3 has on the average, if scaling is perfect.

    Any other profile makes the later stages, which have fewer, longer.
    """
    instances = [row[2] for row in EXPECTED.tables["table3"]["rows"].values()]
    lengths = [
        stage.units * stage.trials / gpus for stage, gpus in zip(RESNET101, TABLE_3, strict=True)
    ]
    held = sum(count * length for count, length in zip(instances, lengths, strict=True))
    return float(held / sum(lengths))


def find(_: Records, __: Extent) -> Reproduced:
    """Put the numbers that exclude each other side by side."""
    line = EXPECTED.line
    rates = measured("placed")
    third_stage = TABLE_3[2] / GPUS_PER_INSTANCE
    lines: list[ValueLine] = [
        line("contradictions", "a", paid_instances("20 min, static"), why=TWICE),
        line(
            "contradictions",
            "b",
            paid_instances("20 min, RubberBand"),
            paper=most_instances(),
            why=TWICE,
        ),
        line("contradictions", "b, stage 3", third_stage, why=TWICE),
        line("contradictions", "c", _naive_gpus()),
        line("contradictions", "d", None),
        line("contradictions", "e", rates[4] / rates[1], why=TWICE),
        line("contradictions", "f", None),
    ]
    return Reproduced(lines=tuple(lines))


def _naive_gpus() -> float:
    """Return the GPUs per trial whose instances are nearest to what 30 and 40 min pay for."""
    paid = paid_instances("30 min, naive")
    epochs = sum(stage.units for stage in RESNET101)

    def held(gpus: int) -> float:
        return sum(s.units * WARM_POOL.instances(gpus * s.trials) for s in RESNET101) / epochs

    return float(min(range(1, MOST_GPUS + 1), key=lambda gpus: abs(held(gpus) - paid)))
