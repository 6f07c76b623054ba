"""Figs. 10 and 11: the price of data, and the number of trials."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, ValueLine
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.papers.rubberband.profiles import RESNET50
from bftrainer.lab.papers.rubberband.replays import Planner, Planning
from bftrainer.lab.papers.rubberband.setting import EXPECTED, MINUTE_S, Points, cloud, study
from bftrainer.study.plan.problem import Billing, Cloud

BATCH, MEAN_S = 512, 4.0
POLICIES = {"static": Planner.STATIC, "elastic": Planner.EXACT}
DATA_GB = {"ImageNet": 150.0, "CIFAR-10": 0.15}
DATA_PRICES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16)  # $ per GB
DATA_DEADLINE_MIN = 15  # not given
TRIALS_OF_DATA, DEADLINE_MIN = 64, 20
MOST = 2048  # GPUs
EQUAL = 1.0 - 1e-9
CHEAP = {
    "ring": "the paper gives neither deadline nor profile; 15 min is our choice",
    "steady": "if scaling goes on and on, a static plan wastes next to nothing",
}
FEWER_STAGES = "the difference falls from 16 to 32 trials, whose last stage is shorter, then grows"


def _planning(planner: Planner, profile: str, cloud_: Cloud, trials: int, minutes: int) -> Planning:
    return Planning(
        experiment=study(trials), scaling=RESNET50[profile](MEAN_S, BATCH), cloud=cloud_,
        deadline_s=minutes * MINUTE_S, planner=planner, most=MOST if trials > 64 else 512,
    )  # fmt: skip


def _of_data(planner: Planner, profile: str, data: str, price: float, minutes: int) -> Planning:
    rented = cloud(data_price=DATA_GB[data] * price)
    return _planning(planner, profile, rented, TRIALS_OF_DATA, minutes)


def fig10_runs(extent: Points) -> tuple[Planning, ...]:
    """Return both policies by data, price and deadline."""
    return tuple(
        _of_data(planner, profile, data, price, minutes)
        for planner in POLICIES.values()
        for profile in RESNET50
        for data in DATA_GB
        for price in DATA_PRICES
        for minutes in extent.data_deadlines_min
    )


def fig10(records: Records, extent: Points) -> Reproduced:
    """Compare the gain of elasticity as data become dear."""

    def ratio(profile: str, data: str, price: float, minutes: int) -> float:
        fixed, elastic = (
            records[_of_data(planner, profile, data, price, minutes)]
            for planner in POLICIES.values()
        )
        return float(fixed.cost / elastic.cost)

    def ratios(profile: str, data: str, price: float) -> list[float]:
        return [ratio(profile, data, price, minutes) for minutes in extent.data_deadlines_min]

    lines: list[ValueLine] = []
    for profile in RESNET50:
        free = max(ratios(profile, "ImageNet", DATA_PRICES[0]))
        dear = max(ratios(profile, "ImageNet", DATA_PRICES[-1]))
        lines.append(EXPECTED.line("fig10", "dear", dear, holds=dear < free, profile=profile))
        cheap = ratio(profile, "CIFAR-10", DATA_PRICES[-1], DATA_DEADLINE_MIN)
        lines.append(EXPECTED.line("fig10", "cheap", cheap, profile=profile, why=CHEAP[profile]))
    least = min(
        one
        for profile in RESNET50
        for data in DATA_GB
        for price in DATA_PRICES
        for one in ratios(profile, data, price)
    )
    lines.append(EXPECTED.line("fig10", "never", least, holds=least >= EQUAL))
    return Reproduced(
        lines=tuple(lines), charts=tuple(_data_chart(records, data) for data in DATA_GB)
    )


def _data_chart(records: Records, data: str) -> Chart:
    plotted = [
        Plotted(
            label=policy,
            x=DATA_PRICES,
            y=tuple(
                records[_of_data(planner, "ring", data, price, DATA_DEADLINE_MIN)].cost
                for price in DATA_PRICES
            ),
        )
        for policy, planner in POLICIES.items()
    ]
    return Chart(
        name=f"fig10-{data}",
        title=f"Cost by the price of data, {data}, {DATA_DEADLINE_MIN} min",
        x_label="price of data ($ per GB)",
        y_label="cost ($)",
        plotted=tuple(plotted),
    )


def _of_trials(planner: Planner, profile: str, billing: Billing, trials: int) -> Planning:
    return _planning(planner, profile, cloud(billing=billing), trials, DEADLINE_MIN)


def fig11_runs(extent: Points) -> tuple[Planning, ...]:
    """Return both policies by billing and number of trials."""
    return tuple(
        _of_trials(planner, profile, billing, trials)
        for planner in POLICIES.values()
        for profile in RESNET50
        for billing in Billing
        for trials in extent.trials
    )


def fig11(records: Records, extent: Points) -> Reproduced:
    """Compare the gain of elasticity as trials become more."""
    lines: list[ValueLine] = []
    charts: list[Chart] = []
    for billing in Billing:
        for profile in RESNET50:
            cost = {
                policy: [
                    records[_of_trials(planner, profile, billing, trials)].cost
                    for trials in extent.trials
                ]
                for policy, planner in POLICIES.items()
            }
            pairs = list(zip(cost["static"], cost["elastic"], strict=True))
            least = min(fixed / elastic for fixed, elastic in pairs)
            gaps = [fixed - elastic for fixed, elastic in pairs]
            is_growing = all(more >= less for less, more in pairwise(gaps)) and gaps[-1] > 0.0
            line = partial(EXPECTED.line, "fig11", billing=f"per {billing}", profile=profile)
            lines.append(line("never", least, holds=least >= EQUAL))
            most = extent.trials[-1]
            lines.append(line("grows", gaps[-1], holds=is_growing, most=most, why=FEWER_STAGES))
            if profile == "ring":
                charts.append(_trials_chart(billing, extent, cost))
    return Reproduced(lines=tuple(lines), charts=tuple(charts))


def _trials_chart(billing: Billing, extent: Points, cost: dict[str, list[float]]) -> Chart:
    x = tuple(float(trials) for trials in extent.trials)
    return Chart(
        name=f"fig11-{billing}",
        title=f"Cost by the number of trials, paid per {billing}",
        x_label="trials",
        y_label="cost ($)",
        plotted=tuple(Plotted(label=policy, x=x, y=tuple(y)) for policy, y in cost.items()),
    )
