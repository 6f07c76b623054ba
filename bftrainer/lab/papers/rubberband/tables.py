"""Tables 2 and 3: time and cost of plans of ResNet-101 by deadline, under each profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from bftrainer.lab.papers.findings import Finding, less, percent
from bftrainer.lab.papers.paper import Steps
from bftrainer.lab.papers.rubberband.profiles import RESNET101
from bftrainer.lab.papers.rubberband.residual import NEAREST, nearest
from bftrainer.lab.papers.rubberband.setting import (
    DEADLINES_MIN,
    MINUTE_S,
    TABLE_3,
    TABLES,
    WARM_POOL,
    Mean,
    Planner,
    Planning,
    Points,
    means,
)
from bftrainer.lab.papers.rubberband.setting import RESNET101 as STUDY
from bftrainer.study.plan.problem import ScalingProfile
from bftrainer.study.plan.stage_cost import Planned

FITTED, OF_TABLE_3 = "D", "E"  # profiles
NAMES = {"static": Planner.STATIC, "naive": Planner.NAIVE, "RubberBand": Planner.REPAIRED}
MOST = 512  # GPUs
SIZES = (1, 2, 4, 8, 12, 16, 32)  # GPUs that are shown of a profile
ROUNDING = 1e-9
CHEAPER = 0.98  # a cost over another: cheaper by more than rounding
Plans = dict[tuple[str, int, Planner], Planned]  # by profile, deadline in minutes, planner


def _profiles() -> dict[str, ScalingProfile]:
    """Return the profiles of ResNet-101; E is the linear program's."""
    return {**RESNET101, OF_TABLE_3: nearest(NEAREST).scaling()}


def _planning(scaling: ScalingProfile, planner: Planner, deadline_s: float) -> Planning:
    return Planning(
        experiment=STUDY, scaling=scaling, cloud=WARM_POOL, deadline_s=deadline_s,
        planner=planner, most=MOST,
    )  # fmt: skip


def _plannings() -> dict[tuple[str, int, Planner], Planning]:
    return {
        (name, minutes, planner): _planning(scaling, planner, minutes * MINUTE_S)
        for name, scaling in _profiles().items()
        for minutes in DEADLINES_MIN
        for planner in Planner
    }


def table2(found: Finding, _: Points) -> Steps:
    """Compare static, naive and elastic plans."""
    plans: Plans = {key: plan for key, plan in (yield _plannings()).items() if plan is not None}
    for row in TABLES["table2"]["rows"]:
        why = TABLES["table2"]["why"].get(row, {})
        _row(found, plans, row, means("table2", row)[:2], why=why)
    _numbers(found, plans)
    _statements(found, plans)
    for name, planner in NAMES.items():
        ours = [plans[FITTED, minutes, planner].cost for minutes in DEADLINES_MIN]
        papers = [_simulated(minutes, name) for minutes in DEADLINES_MIN]
        ys = {f"{name}, profile {FITTED}": ours, f"{name}, paper": papers}
        found.chart("table2", (f"{minutes} min" for minutes in DEADLINES_MIN), ys)
    found.table(
        ("profile, s per epoch", *(f"{size} GPUs" for size in SIZES)),
        ((name, *(f"{s.mean_s(k):.1f}" for k in SIZES)) for name, s in _profiles().items()),
    )
    found.table(
        ("profile", "deadline, min", "planner", "time, min", "cost, $", "GPUs by stage"),
        (
            (
                name, f"{minutes}", planner.value, f"{plan.time_s / MINUTE_S:.1f}",
                f"{plan.cost:.2f}", ", ".join(map(str, plan.gpus)),
            )
            for (name, minutes, planner), plan in plans.items()
        ),
    )  # fmt: skip


def real(found: Finding, _: Points) -> Steps:
    """Put the times and costs that the paper measured beside those under profile D."""
    plans: Plans = yield _plannings()
    for row in TABLES["table2"]["rows"]:
        published = means("table2", row)
        if len(published) > len(("time", "cost")):
            _row(found, plans, row, published[2:4], simulated=published[:2])


def _row(
    found: Finding,
    plans: Plans,
    row: str,
    published: Sequence[Mean],
    *,
    simulated: Sequence[Mean] = (),
    why: Mapping[str, str] | None = None,
) -> None:
    """Compare time and cost; if the paper measured them, say how far off its own simulation is."""
    deadline, _, name = row.partition(" min, ")
    plan = plans[FITTED, int(deadline), NAMES[name]]
    spreads = (f"{published[0].spread * MINUTE_S:.0f} s", f"{published[1].spread:.2f} $")
    values = (("time", plan.time_s / MINUTE_S), ("cost", plan.cost))
    rows = zip(values, published, simulated or published, spreads, strict=True)
    for (key, ours), mean, own, spread in rows:
        found.line(
            key, ours, paper=mean.value, row=row, spread=spread, why=(why or {}).get(key, ""),
            off=percent(own.value / mean.value - 1.0),
        )  # fmt: skip


def _simulated(minutes: int, name: str) -> float:
    """Return the cost that the paper's simulation has."""
    return means("table2", f"{minutes} min, {name}")[1].value


def _saving(plans: Plans, name: str, minutes: int, planner: Planner) -> float:
    return less(plans[name, minutes, planner].cost, plans[name, minutes, Planner.STATIC].cost)


def _numbers(found: Finding, plans: Plans) -> None:
    """Add the lines for the numbers of the text about the table."""
    static, rubberband = (plans[FITTED, 20, NAMES[who]] for who in ("static", "RubberBand"))
    found.line("saving", less(rubberband.cost, static.cost))
    found.line("ratio", static.cost / rubberband.cost)
    at_40 = {name: _saving(plans, name, 40, Planner.REPAIRED) for name in _profiles()}
    papers = less(_simulated(40, "RubberBand"), _simulated(40, "static"))
    found.line(
        "saving, 40", at_40[FITTED], paper=papers,
        least=f"{min(at_40.values()):.0f}", most=f"{max(at_40.values()):.0f}",
    )  # fmt: skip
    found.line("instances", float(static.stages[0].instances))
    found.line("naive GPUs", float(plans[FITTED, 20, Planner.NAIVE].gpus[0]))


def _statements(found: Finding, plans: Plans) -> None:
    """Add the lines for the statements of the text, under all profiles, and for our planners."""
    names = list(_profiles())
    cells = [(name, minutes) for name in names for minutes in DEADLINES_MIN]

    def ratios(planner: Planner, other: Planner) -> dict[tuple[str, int], float]:
        return {at: plans[*at, planner].cost / plans[*at, other].cost for at in cells}

    rubberband = ratios(Planner.REPAIRED, Planner.STATIC)
    naive = ratios(Planner.NAIVE, Planner.STATIC)
    at_30 = [naive[name, 30] for name in names]
    tight = sum(
        all(sooner <= later for sooner, later in pairwise(rubberband[n, m] for m in DEADLINES_MIN))
        for n in names
    )
    over_rubberband = min(ratios(Planner.NAIVE, Planner.REPAIRED).values())
    found.line("cheaper", max(rubberband.values()), holds=max(rubberband.values()) <= CHEAPER)
    found.line("tight", float(tight), holds=tight == len(names), profiles=len(names))
    found.line("naive", min(at_30), holds=min(at_30) * CHEAPER >= 1.0)
    found.line("naive, RubberBand", over_rubberband, holds=over_rubberband * CHEAPER >= 1.0)
    found.line("exact", max(ratios(Planner.EXACT, Planner.REPAIRED).values()))
    found.table(
        ("profile", "min", "RubberBand below static, %", "Alg. 2 literal, %", "naive over static"),
        (
            (
                name, f"{minutes}", f"{_saving(plans, name, minutes, Planner.REPAIRED):.1f}",
                f"{_saving(plans, name, minutes, Planner.LITERAL):.1f}",
                f"{naive[name, minutes]:.2f}",
            )
            for name, minutes in cells
        ),
    )  # fmt: skip


def table3(found: Finding, _: Points) -> Steps:
    """Compare the plan of 20 min with the cheapest of ours that takes no longer."""
    published = {
        name: _planning(scaling, Planner.EXACT, 0.0).costs().predict(TABLE_3)
        for name, scaling in _profiles().items()
    }
    exact, in_its_time = yield (
        {name: _planning(s, Planner.EXACT, 20 * MINUTE_S) for name, s in _profiles().items()},
        {
            name: _planning(scaling, Planner.EXACT, published[name].time_s * (1.0 + ROUNDING))
            for name, scaling in _profiles().items()
        },
    )
    rows = TABLES["table3"]["rows"].items()
    for (epochs, values), stage, ours in zip(rows, STUDY, exact[OF_TABLE_3].stages, strict=True):
        mine = (ours.gpus // stage.trials, ours.instances)
        for key, one, paper in zip(("gpus", "instances"), mine, values[1:], strict=True):
            found.line(key, float(one), paper=paper, epochs=epochs, profile=OF_TABLE_3)
    for name, plan in published.items():
        ratio = in_its_time[name].cost / plan.cost
        found.line("in its time", ratio, minutes=plan.time_s / MINUTE_S, profile=name)
    found.table(
        ("profile", "GPUs by stage, 20 min, exact", "instances"),
        (
            (name, ", ".join(map(str, p.gpus)), ", ".join(str(s.instances) for s in p.stages))
            for name, p in exact.items()
        ),
    )
