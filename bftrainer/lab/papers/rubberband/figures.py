"""Figs. 9 to 12: stragglers, the price of data, the number of trials, the start of instances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np

from bftrainer.lab.papers.findings import Finding, map_values, tabulate
from bftrainer.lab.papers.paper import Steps
from bftrainer.lab.papers.rubberband.profiles import by_ring, steady
from bftrainer.lab.papers.rubberband.setting import (
    MINUTE_S,
    Planner,
    Planning,
    Points,
    cloud,
    study,
)
from bftrainer.study.plan.problem import Billing, Cloud, Draw, ScalingProfile
from bftrainer.study.plan.stage_cost import Costs, Planned

BATCH, MEAN_S = 512, 4.0  # of Figs. 9 to 11
TRIALS, DEADLINE_MIN = 64, 20  # the deadline is that of Fig. 11
POLICIES = {"static": Planner.STATIC, "elastic": Planner.EXACT}
MAGNITUDE = 10.0

SIGMAS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)  # seconds; 0: none
DRAWN_PER = {Draw.UNIT: "iteration", Draw.TASK: "trial of a stage"}

DATA_GB = {"ImageNet": 150.0, "CIFAR-10": 0.15}
DATA_PRICES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16)  # $ per GB
DATA_DEADLINE_MIN = 15  # not given
LITTLE, ADVANTAGE = 1.1, 1.02  # static over elastic: little, worth the name

START_BATCH, START_MEAN_S = 2048, 12.0  # of Fig. 12
INIT_S = (1.0, 10.0, 100.0)
TIGHT_MIN = 90
FLAT_FROM = 13  # GPUs: nearest to 3.5x
NO_IMPACT = 0.02  # of the static plan's cost
PLANNERS = (Planner.STATIC, Planner.LITERAL, Planner.EXACT)
# By the seconds of a unit on one GPU, and the batch of all GPUs.
RESNET50: Mapping[str, Callable[[float, int], ScalingProfile]] = {
    "ring": by_ring,
    "steady": lambda unit_s, _: steady(unit_s),
}


def _both(profile: str, rented: Cloud, trials: int, minutes: int) -> dict[str, Planning]:
    """Return the static and the elastic plan."""
    most = 2048 if trials > 64 else 512

    def plan(planner: Planner) -> Planning:
        return Planning(
            experiment=study(trials), scaling=RESNET50[profile](MEAN_S, BATCH), cloud=rented,
            deadline_s=minutes * MINUTE_S, planner=planner, most=most,
        )  # fmt: skip

    return map_values(plan, POLICIES)


def _gain(plans: Mapping[str, Planned]) -> float:
    """Return how much dearer the static plan is than the elastic one."""
    return plans["static"].cost / plans["elastic"].cost


def _costs(sigma_s: float, draw: Draw, billing: Billing, extent: Points) -> Costs:
    return Costs(
        experiment=study(TRIALS),
        scaling=by_ring(MEAN_S, BATCH, spread=sigma_s / MEAN_S, draw=draw),
        cloud=cloud(billing=billing),
        samples=extent.samples,
    )


def fig9(finding: Finding, extent: Points) -> Steps:
    """Compare what plans made without stragglers cost with them, paid per instance or GPU."""
    plans = yield _both("ring", cloud(), TRIALS, DEADLINE_MIN)
    for policy, plan in plans.items():
        highest = 0.0
        for draw, name in DRAWN_PER.items():
            ys: dict[str, list[float]] = {}
            for billing in Billing:
                model = partial(_costs, draw=draw, billing=billing, extent=extent)
                ys[billing] = [model(sigma_s).predict(plan.gpus).cost for sigma_s in SIGMAS]
            # With the most stragglers: what is paid over what is used.
            ratio = ys[Billing.INSTANCE][-1] / ys[Billing.FUNCTION][-1]
            highest = max(highest, ratio)
            finding.line("ratio", ratio, plan=policy, draw=name)
            labelled = {f"per {billing}, drawn per {name}": cost for billing, cost in ys.items()}
            finding.chart("fig9", SIGMAS, labelled, policy=policy)
        finding.line("magnitude", highest, holds=highest >= MAGNITUDE, plan=policy)
    draws = _costs(SIGMAS[-1], Draw.TASK, Billing.INSTANCE, extent).draws[0]
    finding.line("longest", float(np.mean(draws.max(axis=1)) / np.mean(draws)))


def fig10(finding: Finding, extent: Points) -> Steps:
    """Compare the gain of elasticity as data become dear."""
    deadlines = extent.data_deadlines_min

    def by_deadline(key: tuple[str, str, float]) -> dict[int, dict[str, Planning]]:
        profile, data, price = key
        rented = cloud(data_price=DATA_GB[data] * price)
        return tabulate(lambda minutes: _both(profile, rented, TRIALS, minutes), deadlines)

    records = yield tabulate(by_deadline, product(RESNET50, DATA_GB, DATA_PRICES))
    gains = map_values(lambda plans: list(map(_gain, plans.values())), records)
    dearest = DATA_PRICES[-1]
    dear = max(max(gains[profile, "ImageNet", dearest]) for profile in RESNET50)
    finding.line("dear", dear, holds=dear <= LITTLE)
    finding.line("cheap", _gain(records["ring", "CIFAR-10", dearest][DATA_DEADLINE_MIN]))
    finding.line("never", min(map(min, gains.values())))
    rows = []
    for (profile, data, price), its_gains in gains.items():
        cells = map("{:.2f}".format, its_gains)
        rows.append((f"{profile}, {data}", f"{price:g}", *cells))
    headers = ("static over elastic", "$ per GB", *map("{} min".format, deadlines))
    finding.table(headers, rows)
    for data in DATA_GB:
        plans = [records["ring", data, price][DATA_DEADLINE_MIN] for price in DATA_PRICES]
        finding.chart("fig10", DATA_PRICES, _costs_of(plans), data=data)


def _costs_of(plans: Sequence[Mapping[str, Planned]]) -> dict[str, list[float]]:
    """Return what plans cost, by policy."""
    return tabulate(lambda policy: [pair[policy].cost for pair in plans], POLICIES)


def _growths(plans: Sequence[Mapping[str, Planned]]) -> list[float]:
    """Return by how many $ the gain grows from each number of trials to the next."""
    gaps = [pair["static"].cost - pair["elastic"].cost for pair in plans]
    growths: list[float] = np.diff(gaps).tolist()
    return growths


def fig11(finding: Finding, extent: Points) -> Steps:
    """Compare the gain of elasticity as trials become more."""

    def by_trials(key: tuple[Billing, str]) -> list[dict[str, Planning]]:
        billing, profile = key
        rented = cloud(billing=billing)
        return [_both(profile, rented, trials, DEADLINE_MIN) for trials in extent.trials]

    records = yield tabulate(by_trials, product(Billing, RESNET50))
    for billing in Billing:
        rows: list[tuple[str, ...]] = []
        gains: list[float] = []
        growths: list[float] = []
        for profile in RESNET50:
            plans = records[billing, profile]
            gains += map(_gain, plans)
            growths += _growths(plans)
            cells = [f"{pair['static'].cost:.2f} / {pair['elastic'].cost:.2f}" for pair in plans]
            rows.append((profile, *cells))
        gain, growth = min(gains), min(growths)
        finding.line("outperforms", gain, holds=gain >= ADVANTAGE, billing=billing)
        finding.line("grows", growth, holds=growth > 0.0, billing=billing)
        ys = _costs_of(records[billing, "ring"])
        finding.chart("fig11", map(float, extent.trials), ys, billing=billing)
        headers = (f"paid per {billing}: static / elastic, $", *map(str, extent.trials))
        finding.table(headers, rows)


def started(planner: Planner, scaling: ScalingProfile, init_s: float, minutes: int) -> Planning:
    """Return the study of Fig. 12, 512 trials, on instances that take a time to start."""
    return Planning(
        experiment=study(512, 4096), scaling=scaling, cloud=cloud(init_s=init_s),
        deadline_s=minutes * MINUTE_S, planner=planner, most=4096,
    )  # fmt: skip


def _ratios(costs: Mapping[Planner, Mapping[int, float]]) -> list[float]:
    """Return static over elastic by deadline."""
    return [costs[Planner.STATIC][m] / cost for m, cost in costs[Planner.EXACT].items()]


def _started_by_deadline(
    planner: Planner, scaling: ScalingProfile, init_s: float, deadlines: Iterable[int]
) -> dict[int, Planning]:
    return tabulate(lambda minutes: started(planner, scaling, init_s, minutes), deadlines)


def fig12(finding: Finding, extent: Points) -> Steps:
    """Compare costs by the time that instances take before they are usable, and by deadline."""
    deadlines, flat_13 = extent.init_deadlines_min, f"flat from {FLAT_FROM}"
    profiles = map_values(lambda profile: profile(START_MEAN_S, START_BATCH), RESNET50)
    profiles[flat_13] = steady(START_MEAN_S, FLAT_FROM)

    def by_planner(key: tuple[str, float]) -> dict[Planner, dict[int, Planning]]:
        name, init_s = key
        scaling = profiles[name]
        return tabulate(
            lambda planner: _started_by_deadline(planner, scaling, init_s, deadlines), PLANNERS
        )

    def both_flat(key: tuple[int, int]) -> dict[str, Planning]:
        gpus, minutes = key
        scaling = steady(START_MEAN_S, gpus)
        return map_values(lambda planner: started(planner, scaling, INIT_S[0], minutes), POLICIES)

    in_full, flat = yield (
        tabulate(by_planner, product(profiles, INIT_S)),
        tabulate(both_flat, product(extent.flat_from, deadlines)),
    )
    costs = {}  # by profile and start, by planner, by deadline
    for key, plans in in_full.items():
        costs[key] = map_values(lambda by_minutes: map_values(_cost, by_minutes), plans)
    soon, later, late = (costs[flat_13, init_s] for init_s in INIT_S)
    _lines_of_starts(finding, soon, later, late)
    for init_s in INIT_S:
        ys = {}
        for policy, planner in POLICIES.items():
            ys[policy] = tuple(costs[flat_13, init_s][planner].values())
        finding.chart("fig12", map(float, deadlines), ys, init_s=init_s, profile=flat_13)
    columns = tuple(map("{} min".format, deadlines))
    rows = []
    for (name, init_s), its_costs in costs.items():
        by_deadline = zip(*(its_costs[planner].values() for planner in PLANNERS), strict=True)
        rows.append((name, f"{init_s:g}", *map(_three_costs, by_deadline)))
    finding.table(("static / Alg. 2 literal / exact, $", "init, s", *columns), rows)
    flat_rows = []
    for gpus in extent.flat_from:
        gains = [f"{_gain(flat[gpus, minutes]):.2f}" for minutes in deadlines]
        flat_rows.append((f"{gpus}", *gains))
    finding.table(("static over exact, init 1 s, flat from", *columns), flat_rows)


def _cost(plan: Planned) -> float:
    return plan.cost


def _three_costs(costs: tuple[float, float, float]) -> str:
    static, literal, exact = costs
    return f"{static:.0f} / {literal:.0f} / {exact:.0f}"


def _lines_of_starts(
    finding: Finding,
    soon: Mapping[Planner, Mapping[int, float]],
    later: Mapping[Planner, Mapping[int, float]],
    late: Mapping[Planner, Mapping[int, float]],
) -> None:
    """Add the lines of Fig. 12 by costs after each of the three times ``INIT_S``."""
    ratios = _ratios(soon)
    finding.line("most", max(ratios))
    finding.line("tight", ratios[0], holds=ratios[0] >= MAGNITUDE)
    static = later[Planner.STATIC][TIGHT_MIN] / soon[Planner.STATIC][TIGHT_MIN]
    elastic = later[Planner.EXACT][TIGHT_MIN] / soon[Planner.EXACT][TIGHT_MIN]
    finding.line("static", static, holds=abs(static - 1.0) <= NO_IMPACT)
    finding.line("elastic", elastic)
    falls = float(np.mean(_ratios(late)) / np.mean(ratios))
    finding.line("falls", falls, holds=falls * ADVANTAGE <= 1.0)
