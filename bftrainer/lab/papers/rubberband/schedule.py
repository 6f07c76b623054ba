"""Table 3: the paper's plan for 20 min beside the cheapest one of ours that takes no longer."""

from __future__ import annotations

from bftrainer.lab.papers.findings import Reproduced, Table, ValueLine
from bftrainer.lab.papers.paper import Extent, Records
from bftrainer.lab.papers.rubberband.deadlines import planning, plans_of, profiles
from bftrainer.lab.papers.rubberband.deadlines import runs as runs_of_table2
from bftrainer.lab.papers.rubberband.replays import Planner, Planning
from bftrainer.lab.papers.rubberband.setting import EXPECTED, MINUTE_S, RESNET101, TABLE_3
from bftrainer.study.plan.problem import ScalingProfile
from bftrainer.study.plan.stage_cost import Planned

NEAREST = "E"
ROUNDING = 1e-9
FILLED = "15 GPUs fill the 4 instances that Table 3 lists; its 3 trials of 4 GPUs need 3 instances"


def runs(extent: Extent) -> tuple[Planning, ...]:
    """Return those of Table 2, and exact plans in the time of Table 3's."""
    return (*runs_of_table2(extent), *(_in_its_time(one) for one in profiles().values()))


def _published(scaling: ScalingProfile) -> Planned:
    return planning(scaling, Planner.EXACT, 0.0).costs().predict(TABLE_3)


def _in_its_time(scaling: ScalingProfile) -> Planning:
    return planning(scaling, Planner.EXACT, _published(scaling).time_s * (1.0 + ROUNDING))


def find(records: Records, _: Extent) -> Reproduced:
    """Compare the plan of 20 min, and what it costs."""
    plans = plans_of(records)
    lines: list[ValueLine] = []
    for (epochs, values), stage, ours in zip(
        EXPECTED.tables["table3"]["rows"].items(),
        RESNET101,
        plans[NEAREST, 20, Planner.EXACT].stages,
        strict=True,
    ):
        found = (stage.trials, ours.gpus // stage.trials, ours.instances)
        lines += [
            EXPECTED.line(
                "table3", key, float(one), paper=float(paper), epochs=epochs, profile=NEAREST,
                why=FILLED,
            )
            for key, one, paper in zip(("trials", "gpus", "instances"), found, values, strict=True)
        ]  # fmt: skip
    for name, scaling in profiles().items():
        published = _published(scaling)
        ratio = records[_in_its_time(scaling)].cost / published.cost
        is_cheaper = ratio <= 1.0 + ROUNDING
        minutes = published.time_s / MINUTE_S
        lines.append(
            EXPECTED.line(
                "table3", "cheaper", ratio, holds=is_cheaper, minutes=minutes, profile=name
            )
        )
    exact = {name: plans[name, 20, Planner.EXACT] for name in profiles()}
    rows = tuple(
        (
            name,
            ", ".join(str(gpus) for gpus in plan.gpus),
            ", ".join(str(stage.instances) for stage in plan.stages),
        )
        for name, plan in exact.items()
    )
    table = Table(headers=("profile", "GPUs by stage, 20 min, exact", "instances"), rows=rows)
    return Reproduced(lines=tuple(lines), tables=(table,))
