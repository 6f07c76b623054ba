"""Table 4: how much cheaper elastic plans are for three models."""

from __future__ import annotations

from bftrainer.lab.papers.findings import Reproduced, Table, ValueLine
from bftrainer.lab.papers.paper import Records
from bftrainer.lab.papers.rubberband.deadlines import (
    COMPROMISE,
    FITTED,
    MOST,
    NAMES,
    planning,
    plans_of,
    profiles,
)
from bftrainer.lab.papers.rubberband.deadlines import runs as runs_of_table2
from bftrainer.lab.papers.rubberband.replays import Planner, Planning
from bftrainer.lab.papers.rubberband.setting import EXPECTED, Points, means
from bftrainer.study.plan.exact import fastest
from bftrainer.study.plan.problem import ScalingProfile

KNOWN = "ResNet-101"
MEASURED = "ours is predicted under profile D, nothing was run; the paper measured"
UNKNOWN = "; not computed: stages and profile unpublished"


def runs(extent: Points) -> tuple[Planning, ...]:
    """Return static and exact plans of each profile at deadlines from the least possible on."""
    return (
        *runs_of_table2(extent),
        *(
            planning(scaling, planner, deadline_s)
            for scaling in profiles().values()
            for deadline_s in _deadlines_s(scaling, extent)
            for planner in (Planner.STATIC, Planner.EXACT)
        ),
    )


def _deadlines_s(scaling: ScalingProfile, extent: Points) -> list[float]:
    least = fastest(planning(scaling, Planner.EXACT, 0.0).costs(), MOST).time_s
    return [slack * least for slack in extent.slack]


def find(records: Records, extent: Points) -> Reproduced:
    """Compare the ratios; of two models neither stages nor profiles are published."""
    plans = plans_of(records)
    ratios: dict[str, list[float]] = {}
    for name, scaling in profiles().items():
        found = [
            [records[planning(scaling, p, d)] for p in (Planner.STATIC, Planner.EXACT)]
            for d in _deadlines_s(scaling, extent)
        ]
        ratios[name] = [fixed.cost / elastic.cost for fixed, elastic in found]
    lines: list[ValueLine] = []
    ours = {name: plans[FITTED, 20, NAMES[name]].cost for name in ("static", "RubberBand")}
    for model in EXPECTED.tables["table4"]["rows"]:
        deadline, *costs = means("table4", model)
        is_known = model == KNOWN
        lines += [
            EXPECTED.line(
                "table4", "cost", ours[policy] if is_known else None,
                paper=cost.value, spread=f"{cost.spread:.2f} $", why=MEASURED, model=model,
                minutes=f"{deadline.value:g}", policy=policy, unknown="" if is_known else UNKNOWN,
            )
            for policy, cost in zip(ours, costs, strict=True)
        ]  # fmt: skip
        paper = costs[0].value / costs[1].value
        if is_known:
            one = ours["static"] / ours["RubberBand"]
            lines.append(EXPECTED.line("table4", "ratio", one, paper=paper, why=COMPROMISE))
            continue
        reached = sum(min(of) <= paper <= max(of) for of in ratios.values())
        lines.append(
            EXPECTED.line(
                "table4", "reached", float(reached), holds=reached > 0,
                model=model, ratio=paper, profiles=len(ratios),
            )
        )  # fmt: skip
    least = min(min(of) for of in ratios.values())
    lines.append(EXPECTED.line("table4", "all", least, holds=least >= 1.0))
    headers = ("static over exact, profile", *(f"{slack:g}x" for slack in extent.slack))
    rows = tuple((name, *(f"{r:.2f}" for r in of)) for name, of in ratios.items())
    return Reproduced(lines=tuple(lines), tables=(Table(headers=headers, rows=rows),))
