"""Table 4: how much cheaper elastic plans are for three models."""

from __future__ import annotations

from bftrainer.papers.findings import Line, Reproduced, Table
from bftrainer.papers.paper import Records
from bftrainer.papers.rubberband.deadlines import FITTED, MOST, planning, plans_of, profiles
from bftrainer.papers.rubberband.deadlines import runs as runs_of_table2
from bftrainer.papers.rubberband.extent import Points
from bftrainer.papers.rubberband.published import EXPECTED
from bftrainer.papers.rubberband.replays import Planner, Planning
from bftrainer.study.plan.exact import fastest
from bftrainer.study.plan.scaling import Scaling


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


def _deadlines_s(scaling: Scaling, extent: Points) -> list[float]:
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
        ratios[name] = [fixed.cost / ours.cost for fixed, ours in found]
    lines: list[Line] = []
    for model, (_, fixed_cost, elastic_cost) in EXPECTED.tables["table4"]["rows"].items():
        paper = fixed_cost / elastic_cost
        if model == "ResNet-101":
            fixed, ours = (plans[FITTED, 20, p] for p in (Planner.STATIC, Planner.REPAIRED))
            lines.append(EXPECTED.line("table4", model, fixed.cost / ours.cost, paper=paper))
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
