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
EQUAL = 1.0 - 1e-9

SIGMAS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)  # seconds; 0: none
DRAWN_PER = {Draw.UNIT: "iteration", Draw.TASK: "trial of a stage"}

DATA_GB = {"ImageNet": 150.0, "CIFAR-10": 0.15}
DATA_PRICES = (0.0, 0.01, 0.02, 0.04, 0.08, 0.16)  # $ per GB
DATA_DEADLINE_MIN = 15  # not given
CHEAP = {
    "ring": "the paper gives neither deadline nor profile; 15 min is our choice",
    "steady": "if scaling goes on and on, a static plan wastes next to nothing",
}

START_BATCH, START_MEAN_S = 2048, 12.0  # of Fig. 12
INIT_S = (1.0, 10.0, 100.0)
TIGHT_MIN = 90
FLAT_FROM, FLATTEST = 13, 11  # GPUs: nearest to 3.5x, and to an order of magnitude
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
    most, steps = 0.0, list[float]()
    for policy, plan in plans.items():
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
            steps += [later - sooner for sooner, later in pairwise(ratios)]
            found.line("ratio", ratios[-1], holds=ratios[-1] > 1.0, plan=policy, draw=name)
            ys = {f"per {billing}, drawn per {name}": of for billing, of in cost.items()}
            found.chart("fig9", SIGMAS, ys, policy=policy)
    found.line("grows", min(steps), holds=min(steps) > 0.0)
    found.line("magnitude", most, holds=most >= MAGNITUDE)
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
    gains = {key: {m: _gain(plans) for m, plans in of.items()} for key, of in records.items()}
    for profile in RESNET50:
        free, dear = (
            max(gains[profile, "ImageNet", price].values()) for price in (0.0, DATA_PRICES[-1])
        )
        found.line("dear", dear, holds=dear < free, profile=profile)
        cheap = gains[profile, "CIFAR-10", DATA_PRICES[-1]][DATA_DEADLINE_MIN]
        found.line("cheap", cheap, profile=profile, why=CHEAP[profile])
    least = min(gain for of in gains.values() for gain in of.values())
    found.line("never", least, holds=least >= EQUAL)
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
    for (billing, profile), plans in records.items():
        least = min(_gain(of) for of in plans)
        gaps = [of["static"].cost - of["elastic"].cost for of in plans]
        is_growing = all(more >= fewer for fewer, more in pairwise(gaps)) and gaps[-1] > 0.0
        words = {"billing": f"per {billing}", "profile": profile}
        found.line("never", least, holds=least >= EQUAL, **words)
        found.line("grows", gaps[-1], holds=is_growing, most=extent.trials[-1], **words)
        if profile == "ring":
            ys = {policy: [of[policy].cost for of in plans] for policy in POLICIES}
            found.chart("fig11", map(float, extent.trials), ys, billing=billing)


def started(planner: Planner, scaling: ScalingProfile, init_s: float, minutes: int) -> Planning:
    """Return the study of Fig. 12, 512 trials, on instances that take a time to start."""
    return Planning(
        experiment=study(512, 4096), scaling=scaling, cloud=cloud(init_s=init_s),
        deadline_s=minutes * MINUTE_S, planner=planner, most=4096,
    )  # fmt: skip


def _tight(found: Finding, profile: str, ratio: float) -> None:
    found.line("tight", ratio, holds=ratio >= MAGNITUDE, profile=profile)


def _initialised(
    found: Finding, profile: str, costs: list[dict[Planner, dict[int, float]]]
) -> None:
    """Add the lines of a profile; costs by the time of initialisation, planner and deadline."""
    ratios = [
        [of[Planner.STATIC][m] / of[Planner.EXACT][m] for m in of[Planner.EXACT]] for of in costs
    ]
    found.line("most", max(ratios[0]), profile=profile)
    _tight(found, profile, ratios[0][0])
    for key, planner in (
        ("static", Planner.STATIC),
        ("elastic", Planner.EXACT),
        ("literal", Planner.LITERAL),
    ):  # 10 s of initialisation instead of 1 s, at the tightest deadline
        longer = costs[1][planner][TIGHT_MIN] / costs[0][planner][TIGHT_MIN]
        found.line(key, longer, profile=profile)
    first, last = (sum(of) / len(of) for of in (ratios[0], ratios[-1]))
    found.line("falls", last - first, holds=last < first, profile=profile)


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

    for name in profiles:
        _initialised(found, name, [costs[name, init_s] for init_s in INIT_S])
    _tight(found, f"flat from {FLATTEST}", _gain(flat[FLATTEST, TIGHT_MIN]))
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
