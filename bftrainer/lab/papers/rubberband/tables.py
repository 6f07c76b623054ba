"""Tables 2 to 4: time and cost of plans of ResNet-101 by deadline, under each profile."""

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
from bftrainer.study.plan.exact import fastest
from bftrainer.study.plan.problem import ScalingProfile
from bftrainer.study.plan.stage_cost import Planned

FITTED, OF_TABLE_3 = "D", "E"  # profiles
NAMES = {"static": Planner.STATIC, "naive": Planner.NAIVE, "RubberBand": Planner.REPAIRED}
BOTH = (Planner.STATIC, Planner.EXACT)
MOST = 512  # GPUs
SIZES = (1, 2, 4, 8, 12, 16, 32)  # GPUs that are shown of a profile
ROUNDING = 1e-9
KNOWN = "ResNet-101"
UNKNOWN = "; not computed: stages and profile unpublished"
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
    for minutes in DEADLINES_MIN:
        for name in _profiles():
            _compare(found, plans, name, minutes)
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
    """Put the times and costs that the paper measured beside our predictions."""
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


def _compare(found: Finding, plans: Plans, name: str, minutes: int) -> None:
    """Compare the saving under one profile; what both sides cost is the reason."""
    fixed, elastic = (plans[name, minutes, NAMES[who]].cost for who in ("static", "RubberBand"))
    papers, cheaper = (_simulated(minutes, who) for who in ("static", "RubberBand"))
    literal = ""
    if minutes == max(DEADLINES_MIN):
        saved = _saving(plans, name, minutes, Planner.LITERAL)
        literal = f"; Alg. 2 literal saves {saved:.1f}%, as little as the paper"
    found.line(
        "saving", _saving(plans, name, minutes, Planner.REPAIRED), paper=less(cheaper, papers),
        minutes=minutes, profile=name, fixed=fixed, elastic=elastic, papers=papers, less=cheaper,
        literal=literal,
    )  # fmt: skip


def _statements(found: Finding, plans: Plans) -> None:
    """Add the lines for the statements of the text about the table, and for our planners."""
    names = list(_profiles())
    cells = [(name, minutes) for name in names for minutes in DEADLINES_MIN]

    def ratios(planner: Planner, other: Planner) -> list[float]:
        return [plans[*cell, planner].cost / plans[*cell, other].cost for cell in cells]

    dearest = max(ratios(Planner.REPAIRED, Planner.STATIC))
    savings = [[_saving(plans, n, m, Planner.REPAIRED) for m in DEADLINES_MIN] for n in names]
    tight = sum(all(one >= later for one, later in pairwise(of)) for of in savings)
    at_30 = plans[FITTED, 30, Planner.NAIVE].cost / plans[FITTED, 30, Planner.STATIC].cost
    naive = min(ratios(Planner.NAIVE, Planner.REPAIRED))
    found.line("never dearer", dearest, holds=dearest <= 1.0)
    found.line("tight", float(tight), holds=tight == len(names), profiles=len(names))
    found.line("naive", at_30, holds=at_30 > 1.0)
    found.line("naive, RubberBand", naive, holds=naive > 1.0)
    found.line("exact", max(ratios(Planner.EXACT, Planner.REPAIRED)))
    for m in DEADLINES_MIN:
        literal = max(_saving(plans, name, m, Planner.LITERAL) for name in names)
        found.line("literal", literal, minutes=m)


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
        mine = (stage.trials, ours.gpus // stage.trials, ours.instances)
        for key, one, paper in zip(("trials", "gpus", "instances"), mine, values, strict=True):
            found.line(key, float(one), paper=float(paper), epochs=epochs, profile=OF_TABLE_3)
    for name, plan in published.items():
        ratio = in_its_time[name].cost / plan.cost
        found.line(
            "cheaper", ratio, holds=ratio <= 1.0 + ROUNDING,
            minutes=plan.time_s / MINUTE_S, profile=name,
        )  # fmt: skip
    found.table(
        ("profile", "GPUs by stage, 20 min, exact", "instances"),
        (
            (name, ", ".join(map(str, p.gpus)), ", ".join(str(s.instances) for s in p.stages))
            for name, p in exact.items()
        ),
    )


def table4(found: Finding, extent: Points) -> Steps:
    """Compare the savings; of two models neither stages nor profiles are published.

    Static and exact plans of each profile have deadlines from the least possible on.
    """
    least_s = {
        name: fastest(_planning(scaling, Planner.EXACT, 0.0).costs(), MOST).time_s
        for name, scaling in _profiles().items()
    }
    at_20, by_slack = yield (
        {
            n: _planning(RESNET101[FITTED], NAMES[n], 20 * MINUTE_S)
            for n in ("static", "RubberBand")
        },
        {
            name: [[_planning(s, p, slack * least_s[name]) for p in BOTH] for slack in extent.slack]
            for name, s in _profiles().items()
        },
    )
    ratios = {
        name: [fixed.cost / elastic.cost for fixed, elastic in pairs]
        for name, pairs in by_slack.items()
    }
    ours = {name: plan.cost for name, plan in at_20.items()}
    for model in TABLES["table4"]["rows"]:
        deadline, *costs = means("table4", model)
        is_known = model == KNOWN
        for policy, cost in zip(ours, costs, strict=True):
            found.line(
                "cost", ours[policy] if is_known else None, paper=cost.value,
                spread=f"{cost.spread:.2f} $", model=model, minutes=f"{deadline.value:g}",
                policy=policy, unknown="" if is_known else UNKNOWN,
            )  # fmt: skip
        paper = costs[0].value / costs[1].value
        if is_known:
            found.line("ratio", ours["static"] / ours["RubberBand"], paper=paper)
            continue
        reached = sum(min(of) <= paper <= max(of) for of in ratios.values())
        found.line(
            "reached", float(reached), holds=reached > 0,
            model=model, ratio=paper, profiles=len(ratios),
        )  # fmt: skip
    least = min(min(of) for of in ratios.values())
    found.line("all", least, holds=least >= 1.0)
    found.table(
        ("static over exact, profile", *(f"{slack:g}x" for slack in extent.slack)),
        ((name, *(f"{ratio:.2f}" for ratio in of)) for name, of in ratios.items()),
    )
