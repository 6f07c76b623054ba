"""The least deviation from Table 2 of any scaling profile: a linear program over all of them.

Times and costs of a plan are linear in the seconds per epoch t(g) on g GPUs. The program asks for
t, the time before training (which is not billed) and a delay of each stage so that the worst
relative deviation from the paper's times and costs is least. More GPUs are never slower and never
more than proportionally faster. What it finds is a lower bound: it need not care whether the
paper's planners would choose these plans.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from bftrainer.lab.papers.findings import Finding, percent
from bftrainer.lab.papers.rubberband.profiles import measured
from bftrainer.lab.papers.rubberband.setting import (
    GPUS_PER_INSTANCE,
    LATENCY_S,
    MINUTE_S,
    PRICE_H,
    RESNET101,
    TABLE_3,
    TABLES,
    WARM_POOL,
    Points,
    means,
)
from bftrainer.study.plan.problem import ScalingProfile
from milp.reference.backends import ModelStatus, SolveOptions
from milp.reference.backends.highs import solve_model
from milp.reference.linear_model import LinearModel, Terms, negative

MOST_GPUS = 16  # of a trial
LEAST_EPOCH_S, MOST_EPOCH_S = 0.5, 1000.0
MOST_START_S, MOST_DELAY_S = 90.0, 60.0
NAIVE = {"20 min, naive": 16, "30 min, naive": 5}  # GPUs of a trial: 512 GPUs; costs over times
STATIC = {"20 min, static": 6, "30 min, static": 3, "40 min, static": 2}  # instances
RUBBERBAND = "20 min, RubberBand"
INSTANCES = (8, 5, 4, 2)  # Table 3; 12 GPUs need 3 of them
ROWS = (*STATIC, *NAIVE, RUBBERBAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table2Reading:
    """An interpretation of the rows of Table 2."""

    name: str
    static_20: int = STATIC["20 min, static"]  # section 6.3.1
    init_s: float = LATENCY_S  # billed of each instance of the first stage
    rows: tuple[str, ...] = ROWS
    has_cost: bool = True  # False: completion times alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The nearest profile."""

    worst: float  # relative deviation
    epoch_s: Mapping[int, float]  # by GPUs

    def scaling(self) -> ScalingProfile:
        """Return the profile."""
        sizes = sorted(self.epoch_s)
        return ScalingProfile(gpus=tuple(sizes), unit_s=tuple(self.epoch_s[size] for size in sizes))


NEAREST = Table2Reading(
    name="static 30 and 40, RubberBand 20 alone (profile E)",
    rows=("30 min, static", "40 min, static", RUBBERBAND),
)
READINGS = (
    Table2Reading(name="6 instances in 20 min, as the text says"),
    Table2Reading(name="6 instances in 20 min, times alone", has_cost=False),
    Table2Reading(name="9 instances in 20 min", static_20=9),
    Table2Reading(name="9 instances, initialisation not billed", static_20=9, init_s=0.0),
    Table2Reading(
        name="9 instances, neither initialisation nor RubberBand's row",
        static_20=9,
        init_s=0.0,
        rows=tuple(row for row in ROWS if row != RUBBERBAND),
    ),
    NEAREST,
)


@cache
def nearest(reading: Table2Reading) -> Residual:
    """Return the profile with the least worst deviation."""
    plans = {row: list(_stages(row, reading)) for row in reading.rows}
    gpus_of_plans = {1}
    for plan in plans.values():
        for _, gpus, _ in plan:
            gpus_of_plans.add(gpus)
    sizes = sorted(gpus_of_plans)
    model = LinearModel()
    column = {gpus: model.column("epoch", LEAST_EPOCH_S, MOST_EPOCH_S) for gpus in sizes}
    start = model.column("start", 0.0, MOST_START_S)
    delay = model.column("delay", 0.0, MOST_DELAY_S)
    worst = model.column("worst", 0.0, math.inf)
    model.costs[worst] = -1.0
    for few, many in pairwise(sizes):
        few_s, many_s = column[few], column[many]
        model.row("no slower", [(many_s, 1.0), (few_s, -1.0)], at_most=0.0)
        model.row("not superlinear", [(many_s, many), (few_s, -few)], at_least=0.0)
    for row, plan in plans.items():
        time_s, paid_s = Counter[int]({start: 1, delay: len(plan)}), Counter[int]()
        for instances, gpus, epochs in plan:
            time_s[column[gpus]] += epochs
            paid_s[column[gpus]] += epochs * instances
            paid_s[delay] += instances
        minutes, dollars = _published(row)
        _near(model, worst, time_s, minutes * MINUTE_S)
        if reading.has_cost:
            first_instances, _, _ = plan[0]
            instance_s = dollars * 3600.0 / PRICE_H
            billed_s = instance_s - first_instances * reading.init_s
            _near(model, worst, paid_s, billed_s, scale=instance_s)
    answer = solve_model(model, SolveOptions())
    if answer.status is not ModelStatus.OPTIMAL:
        raise RuntimeError(f"HiGHS: {answer.status} {answer.message}")
    epoch_s = {gpus: answer.values[index] for gpus, index in column.items()}
    return Residual(worst=answer.values[worst], epoch_s=epoch_s)


def _stages(row: str, reading: Table2Reading) -> Iterator[tuple[int, int, int]]:
    """Name instances, GPUs of a trial and epochs of each stage of a row's plan."""
    static_instances = {**STATIC, "20 min, static": reading.static_20}
    for k, stage in enumerate(RESNET101):
        if row in NAIVE:
            gpus = NAIVE[row] * stage.trials
            instances = math.ceil(gpus / GPUS_PER_INSTANCE)
        elif row == RUBBERBAND:
            gpus, instances = TABLE_3[k], INSTANCES[k]
        else:
            instances = static_instances[row]
            gpus = instances * GPUS_PER_INSTANCE
        rounds = math.ceil(stage.trials / gpus)
        yield instances, max(1, gpus // stage.trials), stage.units * rounds


def _published(row: str) -> tuple[float, float]:
    time, cost = means("table2", row)[:2]
    return time.value, cost.value


def _near(
    model: LinearModel,
    worst: int,
    terms: Mapping[int, int],
    value: float,
    scale: float | None = None,
) -> None:
    """Keep a sum within the worst deviation of a published value."""
    terms_: Terms = [(column, float(factor)) for column, factor in terms.items()]
    slack = (worst, -(scale or value))
    model.row("not above", [*terms_, slack], at_most=value)
    model.row("not below", [*negative(terms_), slack], at_most=-value)


def profiles(finding: Finding, _: Points) -> None:
    """Say how near a profile can come to Table 2."""
    rows = []
    for reading in READINGS:
        near = nearest(reading)
        finding.line("worst", percent(near.worst), reading=reading.name)
        times = ", ".join(f"{gpus}: {s:.1f}" for gpus, s in near.epoch_s.items())
        rows.append((reading.name, f"{near.worst:.1%}", times))
    finding.table(("", "worst deviation", "seconds per epoch by GPUs"), rows)


def paid_instances(row: str) -> float:
    """Return for how many instances, on the average, a row of Table 2 pays."""
    time, cost = means("table2", row)[:2]
    return cost.value / PRICE_H * 3600.0 / (time.value * MINUTE_S)


def most_instances() -> float:
    """Return how many instances the plan of Table 3 has on the average, if scaling is perfect.

    Any other profile makes the later stages, which have fewer, longer.
    """
    instance_time = total_time = 0.0
    rows = TABLES["table3"]["rows"].values()
    for stage, gpus, (_, _, instances) in zip(RESNET101, TABLE_3, rows, strict=True):
        length = stage.units * stage.trials / gpus
        instance_time += instances * length
        total_time += length
    return instance_time / total_time


def _naive_gpus() -> float:
    """Return the GPUs per trial whose instances are nearest to what 30 and 40 min pay for."""
    paid = paid_instances("30 min, naive")
    epochs = sum(stage.units for stage in RESNET101)

    def mean_instances(gpus: int) -> float:
        instances = [stage.units * WARM_POOL.instances(gpus * stage.trials) for stage in RESNET101]
        return sum(instances) / epochs

    return float(min(range(1, MOST_GPUS + 1), key=lambda gpus: abs(mean_instances(gpus) - paid)))


def contradictions(finding: Finding, _: Points) -> None:
    """Put numbers of the paper side by side that exclude each other: no model gives them all."""
    rates = measured("placed")
    finding.line("a", paid_instances("20 min, static"))
    finding.line("b", paid_instances("20 min, RubberBand"), paper=most_instances())
    finding.line("b, stage 3", TABLE_3[2] / GPUS_PER_INSTANCE)
    finding.line("c", _naive_gpus())
    finding.line("d", None)
    finding.line("e", rates[4] / rates[1])
    finding.line("f", None)
