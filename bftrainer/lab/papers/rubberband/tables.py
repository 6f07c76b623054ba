"""Tables 2 and 3: time and cost of plans of ResNet-101 by deadline, under each profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import product

from bftrainer.lab.papers.findings import Finding, less, map_values, percent, tabulate
from bftrainer.lab.papers.paper import Steps
from bftrainer.lab.papers.rubberband.profiles import smooth
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
RESNET101: Mapping[str, ScalingProfile] = {
    "A": smooth(103.2, 0.0, 14.9),
    "B": smooth(102.2, 6.0, 2.2),
    "C": smooth(120.0, 4.0, 8.0),
    "D": ScalingProfile(gpus=(1, 2, 4, 8, 16, 32), unit_s=(102.0, 55.0, 35.5, 21.2, 20.9, 20.1)),
}
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
    plannings = {}
    for (name, scaling), minutes, planner in product(_profiles().items(), DEADLINES_MIN, Planner):
        plannings[name, minutes, planner] = _planning(scaling, planner, minutes * MINUTE_S)
    return plannings


def table2(finding: Finding, _: Points) -> Steps:
    """Compare static, naive and elastic plans."""
    answers = yield _plannings()
    plans: Plans = {key: plan for key, plan in answers.items() if plan is not None}
    for row in TABLES["table2"]["rows"]:
        why = TABLES["table2"]["why"].get(row, {})
        _row(finding, plans, row, means("table2", row)[:2], why=why)
    _numbers(finding, plans)
    _statements(finding, plans)
    for name, planner in NAMES.items():
        ours = [plans[FITTED, minutes, planner].cost for minutes in DEADLINES_MIN]
        papers = [_simulated(minutes, name) for minutes in DEADLINES_MIN]
        ys = {f"{name}, profile {FITTED}": ours, f"{name}, paper": papers}
        finding.chart("table2", (f"{minutes} min" for minutes in DEADLINES_MIN), ys)
    _table_of_profiles(finding)
    _table_of_plans(finding, plans)


def _table_of_profiles(finding: Finding) -> None:
    rows = []
    for name, scaling in _profiles().items():
        seconds = [f"{scaling.mean_s(size):.1f}" for size in SIZES]
        rows.append((name, *seconds))
    finding.table(("profile, s per epoch", *(f"{size} GPUs" for size in SIZES)), rows)


def _table_of_plans(finding: Finding, plans: Plans) -> None:
    rows = []
    for (name, minutes, planner), plan in plans.items():
        time, cost = f"{plan.time_s / MINUTE_S:.1f}", f"{plan.cost:.2f}"
        rows.append((name, f"{minutes}", planner.value, time, cost, _listed(plan.gpus)))
    headers = ("profile", "deadline, min", "planner", "time, min", "cost, $", "GPUs by stage")
    finding.table(headers, rows)


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def real(finding: Finding, _: Points) -> Steps:
    """Put the times and costs that the paper measured beside those under profile D."""
    plans: Plans = yield _plannings()
    for row in TABLES["table2"]["rows"]:
        published = means("table2", row)
        if len(published) > len(("time", "cost")):
            _row(finding, plans, row, published[2:4], simulated=published[:2])


def _row(
    finding: Finding,
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
    time, cost = published
    spreads = (f"{time.spread * MINUTE_S:.0f} s", f"{cost.spread:.2f} $")
    values = (("time", plan.time_s / MINUTE_S), ("cost", plan.cost))
    rows = zip(values, published, simulated or published, spreads, strict=True)
    for (key, ours), mean, simulation, spread in rows:
        finding.line(
            key, ours, paper=mean.value, row=row, spread=spread, why=(why or {}).get(key, ""),
            off=percent(simulation.value / mean.value - 1.0),
        )  # fmt: skip


def _simulated(minutes: int, name: str) -> float:
    """Return the cost that the paper's simulation has."""
    _time, cost, *_ = means("table2", f"{minutes} min, {name}")
    return cost.value


def _saving(plans: Plans, name: str, minutes: int, planner: Planner) -> float:
    return less(plans[name, minutes, planner].cost, plans[name, minutes, Planner.STATIC].cost)


def _numbers(finding: Finding, plans: Plans) -> None:
    """Add the lines for the numbers of the text about the table."""
    static, rubberband = plans[FITTED, 20, Planner.STATIC], plans[FITTED, 20, Planner.REPAIRED]
    finding.line("saving", less(rubberband.cost, static.cost))
    finding.line("ratio", static.cost / rubberband.cost)
    at_40 = tabulate(lambda name: _saving(plans, name, 40, Planner.REPAIRED), _profiles())
    papers = less(_simulated(40, "RubberBand"), _simulated(40, "static"))
    finding.line(
        "saving, 40", at_40[FITTED], paper=papers,
        least=f"{min(at_40.values()):.0f}", most=f"{max(at_40.values()):.0f}",
    )  # fmt: skip
    finding.line("instances", float(static.stages[0].instances))
    finding.line("naive GPUs", float(plans[FITTED, 20, Planner.NAIVE].gpus[0]))


def _statements(finding: Finding, plans: Plans) -> None:
    """Add the lines for the statements of the text, under all profiles, and for our planners."""
    names = list(_profiles())
    cells = list(product(names, DEADLINES_MIN))

    def ratios(planner: Planner, rival: Planner) -> dict[tuple[str, int], float]:
        """Return a planner's cost over another's, by profile and deadline."""
        return tabulate(lambda cell: plans[*cell, planner].cost / plans[*cell, rival].cost, cells)

    rubberband = ratios(Planner.REPAIRED, Planner.STATIC)
    naive = ratios(Planner.NAIVE, Planner.STATIC)
    naive_at_30 = min(naive[name, 30] for name in names)
    n_tight = 0  # profiles under which a tighter deadline saves more
    for name in names:
        by_deadline = [rubberband[name, minutes] for minutes in DEADLINES_MIN]
        n_tight += by_deadline == sorted(by_deadline)
    over_rubberband = min(ratios(Planner.NAIVE, Planner.REPAIRED).values())
    finding.line("cheaper", max(rubberband.values()), holds=max(rubberband.values()) <= CHEAPER)
    finding.line("tight", float(n_tight), holds=n_tight == len(names), profiles=len(names))
    finding.line("naive", naive_at_30, holds=naive_at_30 * CHEAPER >= 1.0)
    finding.line("naive, RubberBand", over_rubberband, holds=over_rubberband * CHEAPER >= 1.0)
    finding.line("exact", max(ratios(Planner.EXACT, Planner.REPAIRED).values()))
    rows = []
    for name, minutes in cells:
        repaired = f"{_saving(plans, name, minutes, Planner.REPAIRED):.1f}"
        literal = f"{_saving(plans, name, minutes, Planner.LITERAL):.1f}"
        rows.append((name, f"{minutes}", repaired, literal, f"{naive[name, minutes]:.2f}"))
    finding.table(
        ("profile", "min", "RubberBand below static, %", "Alg. 2 literal, %", "naive over static"),
        rows,
    )


def _predicted(scaling: ScalingProfile) -> Planned:
    """Return what the published plan takes under a profile."""
    return _planning(scaling, Planner.EXACT, 0.0).costs().predict(TABLE_3)


def _in_its_time(scaling: ScalingProfile) -> Planning:
    """Ask for the cheapest plan that takes no longer than the published one."""
    time_s = _predicted(scaling).time_s
    return _planning(scaling, Planner.EXACT, time_s * (1.0 + ROUNDING))


def table3(finding: Finding, _: Points) -> Steps:
    """Compare the plan of 20 min with the cheapest of ours that takes no longer."""
    profiles = _profiles()
    exact, in_its_time = yield (
        map_values(lambda scaling: _planning(scaling, Planner.EXACT, 20 * MINUTE_S), profiles),
        map_values(_in_its_time, profiles),
    )
    rows = TABLES["table3"]["rows"].items()
    for (epochs, values), stage, ours in zip(rows, STUDY, exact[OF_TABLE_3].stages, strict=True):
        _, gpus, instances = values
        line = partial(finding.line, epochs=epochs, profile=OF_TABLE_3)
        line("gpus", float(ours.gpus // stage.trials), paper=gpus)
        line("instances", float(ours.instances), paper=instances)
    for name, scaling in profiles.items():
        published = _predicted(scaling)
        ratio = in_its_time[name].cost / published.cost
        minutes = published.time_s / MINUTE_S
        finding.line("in its time", ratio, minutes=minutes, profile=name)
    plan_rows = []
    for name, plan in exact.items():
        instances = _listed(stage.instances for stage in plan.stages)
        plan_rows.append((name, _listed(plan.gpus), instances))
    finding.table(("profile", "GPUs by stage, 20 min, exact", "instances"), plan_rows)
