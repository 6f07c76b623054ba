"""Figs. 9 to 12: stragglers, the price of data, the number of trials, the start of instances."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from bftrainer.lab.papers.findings import Finding
from bftrainer.lab.papers.paper import Steps
from bftrainer.lab.papers.rubberband.profiles import RESNET50, by_ring, steady
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


def _both(profile: str, rented: Cloud, trials: int, minutes: int) -> dict[str, Planning]:
    """Return the static and the elastic plan."""
    return {
        policy: Planning(
            experiment=study(trials), scaling=RESNET50[profile](MEAN_S, BATCH), cloud=rented,
            deadline_s=minutes * MINUTE_S, planner=planner, most=2048 if trials > 64 else 512,
        )
        for policy, planner in POLICIES.items()
    }  # fmt: skip


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


def fig9(found: Finding, extent: Points) -> Steps:
    """Compare what plans made without stragglers cost with them, paid per instance or GPU."""
    plans = yield _both("ring", cloud(), TRIALS, DEADLINE_MIN)
    for policy, plan in plans.items():
        most = 0.0
        for draw, name in DRAWN_PER.items():
            cost = {
                billing: [_costs(s, draw, billing, extent).predict(plan.gpus).cost for s in SIGMAS]
                for billing in Billing
            }
            ratios = [
                paid / used
                for paid, used in zip(cost[Billing.INSTANCE], cost[Billing.FUNCTION], strict=True)
            ]
            most = max(most, ratios[-1])
            found.line("ratio", ratios[-1], plan=policy, draw=name)
            ys = {f"per {billing}, drawn per {name}": of for billing, of in cost.items()}
            found.chart("fig9", SIGMAS, ys, policy=policy)
        found.line("magnitude", most, holds=most >= MAGNITUDE, plan=policy)
    drawn = _costs(SIGMAS[-1], Draw.TASK, Billing.INSTANCE, extent).draws[0]
    found.line("longest", float(np.mean(drawn.max(axis=1)) / np.mean(drawn)))


def fig10(found: Finding, extent: Points) -> Steps:
    """Compare the gain of elasticity as data become dear."""
    records = yield {
        (profile, data, price): {
            minutes: _both(profile, cloud(data_price=gb * price), TRIALS, minutes)
            for minutes in extent.data_deadlines_min
        }
        for profile in RESNET50
        for data, gb in DATA_GB.items()
        for price in DATA_PRICES
    }
    gains = {key: [_gain(plans) for plans in of.values()] for key, of in records.items()}
    dearest = DATA_PRICES[-1]
    dear = max(gain for profile in RESNET50 for gain in gains[profile, "ImageNet", dearest])
    found.line("dear", dear, holds=dear <= LITTLE)
    found.line("cheap", _gain(records["ring", "CIFAR-10", dearest][DATA_DEADLINE_MIN]))
    found.line("never", min(map(min, gains.values())))
    found.table(
        ("static over elastic", "$ per GB", *(f"{m} min" for m in extent.data_deadlines_min)),
        (
            (f"{profile}, {data}", f"{price:g}", *(f"{gain:.2f}" for gain in of))
            for (profile, data, price), of in gains.items()
        ),
    )
    for data in DATA_GB:
        shown = [records["ring", data, price][DATA_DEADLINE_MIN] for price in DATA_PRICES]
        ys = {policy: [plans[policy].cost for plans in shown] for policy in POLICIES}
        found.chart("fig10", DATA_PRICES, ys, data=data)


def fig11(found: Finding, extent: Points) -> Steps:
    """Compare the gain of elasticity as trials become more."""
    records = yield {
        (billing, profile): [
            _both(profile, cloud(billing=billing), trials, DEADLINE_MIN) for trials in extent.trials
        ]
        for billing in Billing
        for profile in RESNET50
    }
    for billing in Billing:
        by_profile = {profile: records[billing, profile] for profile in RESNET50}
        least = min(_gain(of) for plans in by_profile.values() for of in plans)
        gaps = [[of["static"].cost - of["elastic"].cost for of in p] for p in by_profile.values()]
        growth = min(more - fewer for of in gaps for fewer, more in pairwise(of))
        found.line("outperforms", least, holds=least >= ADVANTAGE, billing=billing)
        found.line("grows", growth, holds=growth > 0.0, billing=billing)
        ys = {policy: [of[policy].cost for of in by_profile["ring"]] for policy in POLICIES}
        found.chart("fig11", map(float, extent.trials), ys, billing=billing)
        found.table(
            (f"paid per {billing}: static / elastic, $", *map(str, extent.trials)),
            (
                (name, *(" / ".join(f"{of[p].cost:.2f}" for p in POLICIES) for of in plans))
                for name, plans in by_profile.items()
            ),
        )


def started(planner: Planner, scaling: ScalingProfile, init_s: float, minutes: int) -> Planning:
    """Return the study of Fig. 12, 512 trials, on instances that take a time to start."""
    return Planning(
        experiment=study(512, 4096), scaling=scaling, cloud=cloud(init_s=init_s),
        deadline_s=minutes * MINUTE_S, planner=planner, most=4096,
    )  # fmt: skip


def _ratios(costs: Mapping[Planner, Mapping[int, float]]) -> list[float]:
    """Return static over elastic by deadline."""
    return [costs[Planner.STATIC][m] / cost for m, cost in costs[Planner.EXACT].items()]


def fig12(found: Finding, extent: Points) -> Steps:
    """Compare costs by the time that instances take before they are usable, and by deadline."""
    deadlines, flat_13 = extent.init_deadlines_min, f"flat from {FLAT_FROM}"
    profiles = {name: of(START_MEAN_S, START_BATCH) for name, of in RESNET50.items()}
    profiles[flat_13] = steady(START_MEAN_S, FLAT_FROM)
    in_full, flat = yield (
        {
            (name, init_s): {
                planner: {m: started(planner, scaling, init_s, m) for m in deadlines}
                for planner in PLANNERS
            }
            for name, scaling in profiles.items()
            for init_s in INIT_S
        },
        {
            (gpus, m): {
                policy: started(planner, steady(START_MEAN_S, gpus), INIT_S[0], m)
                for policy, planner in POLICIES.items()
            }
            for gpus in extent.flat_from
            for m in deadlines
        },
    )
    costs = {
        key: {planner: {m: plan.cost for m, plan in of.items()} for planner, of in plans.items()}
        for key, plans in in_full.items()
    }

    soon, later, late = (costs[flat_13, init_s] for init_s in INIT_S)
    found.line("most", max(_ratios(soon)))
    found.line("tight", _ratios(soon)[0], holds=_ratios(soon)[0] >= MAGNITUDE)
    static, elastic = (later[p][TIGHT_MIN] / soon[p][TIGHT_MIN] for p in POLICIES.values())
    found.line("static", static, holds=abs(static - 1.0) <= NO_IMPACT)
    found.line("elastic", elastic)
    falls = float(np.mean(_ratios(late)) / np.mean(_ratios(soon)))
    found.line("falls", falls, holds=falls * ADVANTAGE <= 1.0)
    for init_s in INIT_S:
        by_planner = costs[flat_13, init_s]
        ys = {p: tuple(by_planner[planner].values()) for p, planner in POLICIES.items()}
        found.chart("fig12", map(float, deadlines), ys, init_s=init_s, profile=flat_13)
    minutes = tuple(f"{m} min" for m in deadlines)
    found.table(
        ("static / Alg. 2 literal / exact, $", "init, s", *minutes),
        (
            (
                name, f"{init_s:g}",
                *(" / ".join(f"{of[planner][m]:.0f}" for planner in PLANNERS) for m in deadlines),
            )
            for (name, init_s), of in costs.items()
        ),
    )  # fmt: skip
    found.table(
        ("static over exact, init 1 s, flat from", *minutes),
        (
            (f"{gpus}", *(f"{_gain(flat[gpus, m]):.2f}" for m in deadlines))
            for gpus in extent.flat_from
        ),
    )
