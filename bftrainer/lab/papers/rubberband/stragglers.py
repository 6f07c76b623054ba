"""Fig. 9: the cost of stragglers if instances are paid, and if only GPUs that train are."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from bftrainer.lab.papers.findings import Chart, Plotted, Reproduced, ValueLine
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.papers.rubberband.profiles import by_ring
from bftrainer.lab.papers.rubberband.replays import Planner, Planning
from bftrainer.lab.papers.rubberband.setting import EXPECTED, MINUTE_S, Points, cloud, study
from bftrainer.study.plan.problem import Billing, Draw
from bftrainer.study.plan.stage_cost import Costs

TRIALS = 64
BATCH, MEAN_S = 512, 4.0
SIGMAS = (0.0, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0)  # seconds; 0: none
DEADLINE_MIN = 20  # that of Fig. 11
POLICIES = {"static": Planner.STATIC, "elastic": Planner.EXACT}
MAGNITUDE = 10.0
LONGEST = (
    "per instance a stage costs its longest trial, per function the mean of all; the longest of 64 "
    "is about four means, so that ten times is out of reach"
)
NAMES = {Draw.UNIT: "iteration", Draw.TASK: "trial of a stage"}


def _planning(planner: Planner) -> Planning:
    return Planning(
        experiment=study(TRIALS), scaling=by_ring(MEAN_S, BATCH), cloud=cloud(),
        deadline_s=DEADLINE_MIN * MINUTE_S, planner=planner,
    )  # fmt: skip


def runs(_: Points) -> tuple[Planning, ...]:
    """Return a static and an elastic plan; both are made without stragglers."""
    return tuple(_planning(planner) for planner in POLICIES.values())


def _costs(sigma_s: float, draw: Draw, billing: Billing, extent: Points) -> Costs:
    return Costs(
        experiment=study(TRIALS),
        scaling=by_ring(MEAN_S, BATCH, spread=sigma_s / MEAN_S, draw=draw),
        cloud=cloud(billing=billing),
        samples=extent.samples,
    )


def find(records: Records, extent: Points) -> Reproduced:
    """Compare what the same plan costs under both billings."""
    lines: list[ValueLine] = []
    charts: list[Chart] = []
    most = 0.0
    steps: list[float] = []
    for policy, planner in POLICIES.items():
        plan = records[_planning(planner)].gpus
        plotted: list[Plotted] = []
        for draw, name in NAMES.items():
            cost = {
                billing: [
                    _costs(sigma_s, draw, billing, extent).predict(plan).cost for sigma_s in SIGMAS
                ]
                for billing in Billing
            }
            ratios = [
                paid / used
                for paid, used in zip(cost[Billing.INSTANCE], cost[Billing.FUNCTION], strict=True)
            ]
            most = max(most, ratios[-1])
            steps += [more - less for less, more in pairwise(ratios)]
            lines.append(
                EXPECTED.line(
                    "fig9", "ratio", ratios[-1], holds=ratios[-1] > 1.0,
                    plan=policy, draw=name,
                )
            )  # fmt: skip
            plotted += [
                Plotted(label=f"per {billing}, drawn per {name}", x=SIGMAS, y=tuple(cost[billing]))
                for billing in Billing
            ]
        charts.append(
            Chart(
                name=f"fig9-{policy}",
                title=f"Cost by the spread of iterations, {policy} plan",
                x_label="standard deviation of an iteration (s)",
                y_label="cost ($)",
                plotted=tuple(plotted),
            )
        )
    lines.append(EXPECTED.line("fig9", "grows", min(steps), holds=min(steps) > 0.0))
    lines.append(EXPECTED.line("fig9", "magnitude", most, holds=most >= MAGNITUDE, why=LONGEST))
    lines.append(EXPECTED.line("fig9", "longest", _longest(extent)))
    return Reproduced(lines=tuple(lines), charts=tuple(charts))


def _longest(extent: Points) -> float:
    """Return the mean of the longest of a stage over the mean of all, at the largest sigma."""
    drawn = _costs(SIGMAS[-1], Draw.TASK, Billing.INSTANCE, extent).draws[0]
    return float(np.mean(drawn.max(axis=1)) / np.mean(drawn))
