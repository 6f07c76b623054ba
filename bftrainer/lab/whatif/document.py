"""A ``BusinessCase`` as a JSON document, and in sentences and rows.

``bftrainer whatif`` prints them, and ``page`` puts the same ones on a page: the answer first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from bftrainer.batch.traces.fragments import HOUR_S
from bftrainer.decide import short_gaps
from bftrainer.lab.report import gpu_sections
from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.lab.simulator.metrics import WHICH_FIGURE
from bftrainer.lab.whatif.advice import (
    NO_DIFFERENCE,
    BusinessCase,
    Expected,
    Sweep,
    SweepPoint,
    idle_confirmations,
)
from bftrainer.lab.whatif.kept import IdleOverTime, KindOfNodes
from bftrainer.lab.whatif.present import LendingNow, lending_sections
from bftrainer.lab.whatif.replays import Estimate, times
from bftrainer.model.columns import TextTable, counted, level_line
from bftrainer.model.quantities import quantity, time_span

MINUTE_S, DAY_H = 60.0, 24.0
SCHEMA = "bftrainer/whatif/1"
LINE_WIDTH = 48  # bars of a line: two days of a week
LENGTHS = ("p10", "p50", "p90", "longest")  # of the idle times, that are shown
NO_CHANGE = "no change"
# Of the tables; ">": to the right.
KIND_HEADERS = ("NODES OF", ">NODES", ">IDLE, MEAN", ">IDLE SHARE", ">IDLE NODE-HOURS PER DAY")
KEPT_HEADERS = (">IDLE GPU-HOURS PER DAY", ">KEPT BY RESERVE", ">LOST IF ALL GAPS ARE PLANNED")
EXPECTED_HEADERS = (
    "POLICY", ">WORK DONE PER DAY, NODE-HOURS", ">AGAINST THE FIRST", ">SAMPLES PER DAY, 1e6",
    ">COMPLETED", ">U", ">NODE-HOURS TRAINED PER DAY", ">OF THE IDLE TIME",
)  # fmt: skip
SECOND_HEADERS = ("ONE SECOND MORE OF", ">COSTS NODE-HOURS PER DAY", ">OF WHAT IS TRAINED")
TRAINED_AND_DONE = (
    "A node-hour trained is an hour in which a trainer trains on a node. A node-hour of work done "
    "is what a trainer does in an hour alone on one node: on several it mostly does less on each."
)
Row = tuple[str, str]


def as_document(case: BusinessCase, source: str, now: LendingNow | None = None) -> dict[str, Any]:
    """Return the document; times in seconds, amounts in node-hours.

    Args:
        case: the business case.
        source: name of the trace.
        now: what the running site could lend one by one.
    """
    assumptions = case.assumptions
    return {
        "schema": SCHEMA,
        "trace": source,
        "idle": dataclasses.asdict(case.idle),
        "recommended": {
            "t_fwd_s": case.t_fwd_s,
            "p_jmax": case.p_jmax,
            "hold_down_s": case.hold_down_s,
            "idle_confirmations": idle_confirmations(case.hold_down_s, assumptions.poll_interval_s),
            "poll_interval_s": assumptions.poll_interval_s,
        },
        "sweeps": list(map(dataclasses.asdict, case.sweeps)),
        "expected": list(map(dataclasses.asdict, case.expected)),
        "one_second_more": list(map(dataclasses.asdict, case.seconds)),
        "short_gaps": dataclasses.asdict(case.short_gaps),
        "replayed": dataclasses.asdict(case.replayed),
        "costs_s": assumptions.costs.by_name(),
        "seed": assumptions.seed,
        "assumptions": list(assumptions.sentences(case.idle.n_node_types)),
        "notes": [*case.left_out, *case.notes],
        "warnings": list(case.warnings),
        "answer": answer(case),
        "kept_back": dataclasses.asdict(case.kept),
        "with_policy_node_hours_per_day": dict(
            zip(("if_all_planned", "if_none_planned"), with_policy(case), strict=True)
        ),
        "kinds": list(map(dataclasses.asdict, case.kinds)),
        "idle_over_time": dataclasses.asdict(case.over_time),
        "lending_now": None if now is None else dataclasses.asdict(now),
    }


def report_of(
    case: BusinessCase,
    source: str,
    command: str = "",
    *,
    week: tuple[Picture, ...] = (),
    sweeps: tuple[Picture, ...] = (),
    without_pictures: tuple[str, ...] = (),
    now: LendingNow | None = None,
) -> ReportPage:
    """Return the report, as a page and a terminal show it.

    Args:
        case: the business case.
        source: name of the trace.
        command: repeats what is shown.
        week: the idle nodes over time.
        sweeps: U over the values of each setting.
        without_pictures: why there are none.
        now: what the running site could lend one by one.
    """
    return ReportPage(
        title=f"What idle nodes are worth: {source}",
        answers=(answer(case),),
        more=(
            *(f"Of the log, {sentence}." for sentence in case.left_out),
            which_figure(case),
        ),
        warnings=case.warnings,
        sections=(
            Section(
                title="When and where nodes are idle",
                text=without_pictures,
                pictures=week,
                drawn=week_drawn(case),
                tables=(_table(*kind_rows(case)),),
            ),
            *(*gpu_sections(case.idle.gpus), *lending_sections(now)),
            Section(title=_after_kept(case), text=kept_sentences(case)),
            Section(
                title="Recommended settings",
                text=(advice_sentence(case),),
                pictures=sweeps,
                is_small=True,
                tables=(
                    _table(("SETTING", ">RECOMMENDED", "WHY"), advice_rows(case)),
                    *_by_work(case),
                ),
                code="\n".join(policy_lines(case)),
            ),
            _before_kept(case),
            Section(
                title="What a second costs",
                tables=(_table(SECOND_HEADERS, second_rows(case)),),
            ),
            Section(title="Idle time in figures", tables=(_table(("", ""), idle_rows(case)),)),
            Section(title="Assumptions", items=tuple(_assumptions(case))),
        ),
        command=command,
    )


def _before_kept(case: BusinessCase) -> Section:
    return Section(
        title="Before the policy keeps anything back: replays with these settings",
        text=(TRAINED_AND_DONE, *expected_sentences(case)),
        tables=(_table(EXPECTED_HEADERS, expected_rows(case)),),
        items=(WHICH_FIGURE,),
    )


def _assumptions(case: BusinessCase) -> Iterator[str]:
    yield from case.assumptions.sentences(case.idle.n_node_types)
    for sweep in case.sweeps:
        if len(sweep.points) > 1:
            yield swept_sentence(sweep)
    yield replayed_sentence(case)
    yield from above_one(case)
    yield from map("Source: {}".format, case.notes)


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> TextTable:
    return TextTable(headers=headers, rows=tuple(rows))


def idle_means(over: IdleOverTime) -> list[float]:
    """Return the mean number of idle nodes of all kinds in each window."""
    return list(map(sum, zip(*over.nodes.values(), strict=True)))


def averaged(over: IdleOverTime) -> str:
    """Return over how long the idle nodes are averaged, and the most of them."""
    window_min = (over.edges_s[1] - over.edges_s[0]) / MINUTE_S
    highest = quantity(max(idle_means(over)))
    momentary = f"at one moment {over.most_nodes:,}"
    return f"the mean of {quantity(window_min)} min, up to {highest} ({momentary})"


def week_drawn(case: BusinessCase) -> tuple[str, ...]:
    """Return the idle nodes over time in lines of bars, one for each mean of the page's picture."""
    over = case.over_time
    nodes = idle_means(over)
    highest = max(nodes) or 1.0  # of a week without an idle node every bar is empty
    bars = level_line([count / highest for count in nodes])
    from_h = [f"{(edge_s - over.edges_s[0]) / HOUR_S:g}" for edge_s in over.edges_s[::LINE_WIDTH]]
    begins = range(0, len(bars), LINE_WIDTH)
    width = max(map(len, from_h))
    hours = time_span(case.idle.hours * HOUR_S)
    lines = [f"idle nodes over {hours}, each bar {averaged(over)}:"]
    for hour, begin in zip(from_h, begins, strict=False):
        lines.append(f"{hour:>{width}} h {bars[begin : begin + LINE_WIDTH]}")
    return tuple(lines)


def with_policy(case: BusinessCase) -> tuple[float, float]:
    """Return the least and most node-hours per day that the policy's reserve and gap leave.

    The replays' share of the idle time is taken to hold for what is left of it.
    """
    harvest = case.expected[0].node_hours_per_day.value
    return harvest * case.kept.after_both, harvest * case.kept.after_reserve


def answer(case: BusinessCase) -> str:
    """Return what the site would gain, in one sentence."""
    idle = case.idle.node_hours_per_day
    low, high = with_policy(case)
    nodes = _range(quantity(low / DAY_H), quantity(high / DAY_H))
    shares = _range(f"{low / idle:.0%}", f"{high / idle:.0%}")
    return (
        f"Trainers could have {_left(case)} node-hours a day of the {quantity(idle)} that are "
        f"idle: {shares}, like {nodes} nodes that train all day."
    )


def _left(case: BusinessCase) -> str:
    """Return the node-hours per day that the policy leaves."""
    return _range(*map(quantity, with_policy(case)))


def _after_kept(case: BusinessCase) -> str:
    return f"After what the policy keeps back: {_left(case)} node-hours a day"


def which_figure(case: BusinessCase) -> str:
    """Return which of the report's figures is for whom."""
    best = case.expected[0]
    trained = quantity(best.node_hours_per_day.value)
    work = quantity(best.reference_node_h_per_day.value)
    return (
        f"Show {_left(case)} to those who decide: it is what the policy leaves. The {trained} "
        f"node-hours trained and {work} of work done further below are of replays that keep "
        "nothing back; they serve to compare settings and policies."
    )


def _range(low: str, high: str) -> str:
    return high if low == high else f"{low} to {high}"


def kept_sentences(case: BusinessCase) -> tuple[str, ...]:
    """Return what the policy's reserve and least gap keep of the idle time."""
    terms, best = case.kept, case.expected[0]
    low, high = with_policy(case)
    count, margin_s = terms.reserve_nodes_per_type, terms.gap_margin_s
    shortest_s = terms.min_gap_s + margin_s
    return (
        (
            f"With nothing kept back the replays use {shown(best.node_hours_per_day)} "
            f"node-hours a day, {shown(best.harvested_share, '.1%')} of the idle time."
        ),
        (
            f"The reserve ({counted(count, 'idle node')} of each kind, "
            f"reserve_nodes_per_type) leaves {quantity(high)} of them."
        ),
        (
            "A gap that ends with a planned job is lost if it is shorter than "
            f"{shortest_s:g} s (min_gap_s {terms.min_gap_s:g} and gap_margin_s {margin_s:g}), and "
            f"the last {margin_s:g} s of a longer one. If all gaps ended so, {quantity(low)} "
            "would be left; accounting does not tell which jobs were planned."
        ),
        *islice(short_gaps.sentences(case.short_gaps, None), 1, None),  # the first says the same
    )


def kind_rows(case: BusinessCase) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headers and rows of the idle time by partition and type of node."""
    has_gpus = any(kind.gpus for kind in case.kinds)
    kept_headers: tuple[str, ...] = KEPT_HEADERS
    if not has_gpus:
        kept_headers = KEPT_HEADERS[1:]
    return (*KIND_HEADERS, *kept_headers), [_kind_row(kind, has_gpus) for kind in case.kinds]


def _kind_row(kind: KindOfNodes, has_gpus: bool) -> tuple[str, ...]:
    gpu_hours: tuple[str, ...] = ()
    if has_gpus and kind.gpus is None:
        gpu_hours = ("-",)
    elif has_gpus and kind.gpus is not None:
        gpu_hours = (quantity(kind.gpus * kind.node_hours_per_day),)
    return (
        kind.name or "the whole machine",
        f"{kind.n_nodes:,}",
        quantity(kind.eq_nodes),
        f"{kind.idle_share:.1%}",
        quantity(kind.node_hours_per_day),
        *gpu_hours,
        f"{kind.reserve_share:.1%}",
        f"{kind.planned_share:.1%}",
    )


def idle_rows(case: BusinessCase) -> list[Row]:
    """Return the figures of the idle time."""
    idle = case.idle
    unfillable = idle.unfillable_share
    lengths = [f"{name} {time_span(idle.length_s[name])}" for name in LENGTHS]
    shares, of_time = [], []
    for share in idle.shorter:
        under = f"under {time_span(share.under_s)}"
        shares.append(f"{share.of_fragments:.0%} {under}")
        of_time.append(f"{share.of_node_time:.1%} {under}")
    return [
        ("nodes", f"{idle.n_nodes:,} ({idle.n_named:,} in the trace)"),
        ("observed", time_span(idle.hours * HOUR_S)),
        ("idle share of node-time", f"{idle.idle_share:.2%}"),
        ("accounted for", idle.node_time.sentence()),
        ("of it unfillable", "not known" if unfillable is None else f"{unfillable:.1%}"),
        ("idle nodes on average (N_eq)", quantity(idle.eq_nodes)),
        ("idle node-hours per day", quantity(idle.node_hours_per_day)),
        ("fragments per day", quantity(idle.fragments_per_day)),
        ("their length", ", ".join(lengths)),
        ("how many are short", ", ".join(shares)),
        ("idle time in those", ", ".join(of_time)),
    ]


def advice_rows(case: BusinessCase) -> list[tuple[str, str, str]]:
    """Return the recommended settings: name in the policy, value, reason."""
    trainers, forward, hold = case.sweeps
    poll_s = case.assumptions.poll_interval_s
    confirmations = idle_confirmations(case.hold_down_s, poll_s)
    hold_down = f" Hold-down {case.hold_down_s:g} s, with poll_interval_s {poll_s:g}."
    return [
        ("t_fwd_s", _value(forward, f"{case.t_fwd_s:g}"), _why(forward)),
        ("p_jmax", _value(trainers, f"{case.p_jmax}"), _why(trainers)),
        ("idle_confirmations", _value(hold, f"{confirmations}"), f"{_why(hold)}{hold_down}"),
    ]


def _value(sweep: Sweep, value: str) -> str:
    is_alike = len(sweep.points) > 1 and not sweep.is_beyond_chance
    return NO_CHANGE if is_alike else value


def _by_work(case: BusinessCase) -> Iterator[TextTable]:
    """Yield the figures that decide where these are not U."""
    for sweep in case.sweeps:
        if sweep.is_by_work and len(sweep.points) > 1:
            headers = (f">{sweep.name.upper()}", f">WORK DONE AGAINST {sweep.chosen:g}", ">U")
            yield _table(headers, [_point_row(sweep, point) for point in sweep.points])


def _point_row(sweep: Sweep, point: SweepPoint) -> tuple[str, ...]:
    against = Estimate(value=point.gain, low=point.gain_low, high=point.gain_high)
    verdict = shown(against, "+.1%")
    if point.value == sweep.chosen:
        verdict = "recommended" if sweep.is_beyond_chance else NO_CHANGE
    return f"{point.value:g}", verdict, shown(_used(point), ".3f")


def _used(point: SweepPoint) -> Estimate:
    return Estimate(value=point.utilization, low=point.low, high=point.high)


def advice_sentence(case: BusinessCase) -> str:
    """Return which settings are worth a change, and which are not."""
    to_change: list[str] = []
    to_keep: list[str] = []
    without_difference: list[str] = []
    for name, sweep in _by_key(case):
        if len(sweep.points) <= 1:
            continue
        if not sweep.is_beyond_chance:
            without_difference.append(name)
        elif sweep.chosen == sweep.usual:
            to_keep.append(name)
        else:
            to_change.append(name)
    if not (to_change or to_keep or without_difference):
        return "All settings are as given."
    parts = ["Change nothing in the policy."]
    if to_change:
        parts = [f"Set {_listed(to_change)}."]
    if to_keep:
        parts.append(f"Of {_listed(to_keep)} the policy's own value is recommended.")
    if without_difference:
        parts.append(f"{NO_DIFFERENCE} was seen for {_listed(without_difference)}.")
    return " ".join(parts)


def _listed(names: Sequence[str]) -> str:
    *earlier, last = names
    return f"{', '.join(earlier)} and {last}" if earlier else last


def policy_lines(case: BusinessCase) -> list[str]:
    """Return the lines for the policy: what is worth a change, and what was given."""
    lines = []
    for (_, sweep), (name, value, _) in zip(_by_key(case), advice_rows(case), strict=True):
        is_settled = sweep.is_beyond_chance or len(sweep.points) == 1
        if is_settled and sweep.chosen != sweep.usual:
            lines.append(f"{name}: {value}")
    return lines


def _by_key(case: BusinessCase) -> list[tuple[str, Sweep]]:
    """Return the sweeps by the policy's keys, in the order of ``advice_rows``."""
    trainers, forward, hold = case.sweeps
    return [("t_fwd_s", forward), ("p_jmax", trainers), ("idle_confirmations", hold)]


def _why(sweep: Sweep) -> str:
    return sweep.why if len(sweep.points) > 1 else "As given."


def expected_rows(case: BusinessCase) -> list[tuple[str, ...]]:
    """Return the figures of each policy, under ``EXPECTED_HEADERS``."""
    return list(map(_expected_row, case.expected))


def _expected_row(harvest: Expected) -> tuple[str, ...]:
    return (
        harvest.policy,
        shown(harvest.reference_node_h_per_day),
        "-" if harvest.work_against is None else shown(harvest.work_against, "+.1%"),
        shown(times(harvest.samples_per_day, 1e-6)),
        f"{harvest.completed:,}",
        shown(harvest.utilization, ".3f"),
        shown(harvest.node_hours_per_day),
        shown(harvest.harvested_share, ".1%"),
    )


def expected_sentences(case: BusinessCase) -> list[str]:
    """Return how each further policy compares with the first one."""
    first = case.expected[0].policy
    sentences = []
    for harvest in case.expected[1:]:
        policy, gain = harvest.policy, harvest.work_against
        if gain is None or gain.low is None:
            sentences.append(f"{policy}: the trace is too short to compare it with {first}.")
        elif gain.is_beyond_chance:
            word = "more" if gain.value > 0 else "less"
            size = f"{abs(gain.value):.1%}"
            low, high = sorted((abs(gain.low), abs(gain.high or 0)))
            sentences.append(
                f"{policy} does {size} {word} work than {first} ({low:.1%} to {high:.1%})."
            )
        else:
            sentences.append(f"{policy}: {NO_DIFFERENCE[0].lower()}{NO_DIFFERENCE[1:]}.")
    return sentences


def second_rows(case: BusinessCase) -> list[tuple[str, str, str]]:
    """Return the cost of one more second of each kind."""
    return [
        (second.name, shown(second.node_hours_per_day), shown(second.share_of_work, ".3%"))
        for second in case.seconds
    ]


def replayed_sentence(case: BusinessCase) -> str:
    """Return how much of the trace was replayed."""
    part = case.replayed
    nodes = "all nodes"
    if part.part_of_idle < 1.0:
        nodes = (
            f"{part.nodes:,} neighbouring nodes with {part.part_of_idle:.0%} of the idle time; "
            "P_jmax is scaled up"
        )
    interval = "Intervals are 95% bootstrap over these stretches."
    if case.expected[0].utilization.low is None:
        interval = "The trace is too short for intervals."
    return (
        f"Replayed: {nodes}; {part.coarse_hours:,.1f} h in {part.coarse_stretches} stretches for "
        f"each value tried, {part.fine_hours:,.1f} h in {part.fine_stretches} for what is "
        f"expected. {interval}"
    )


def swept_sentence(sweep: Sweep) -> str:
    """Return U at each value tried, with its interval."""
    tried = [f"{point.value:g}: {shown(_used(point), '.3f')}" for point in sweep.points]
    aside = " (the work done decides, above)" if sweep.is_by_work else ""
    return f"U over {sweep.name}{aside}: {', '.join(tried)}"


def above_one(case: BusinessCase) -> tuple[str, ...]:
    """Explain a U above 1, if there is one."""
    utilizations = [harvest.utilization for harvest in case.expected]
    for sweep in case.sweeps:
        utilizations.extend(map(_used, sweep.points))
    if max(estimate.high or estimate.value for estimate in utilizations) <= 1.0:
        return ()
    why = (
        "A U above 1 is no mistake. It is measured against trainers that share the nodes equally"
        " (A_s, eqs. 17 to 19 of the BFTrainer paper), and unequal shares can be better: some sizes"
        f" of {case.assumptions.network.name} process more samples per node than their neighbours."
    )
    return (why,)


def shown(figure: Estimate, form: str = "") -> str:
    """Return a figure with its interval, as quantities if no format is given."""

    def write(number: float) -> str:
        return format(number, form) if form else quantity(number)

    if figure.low is None or figure.high is None:
        return write(figure.value)
    return f"{write(figure.value)} [{write(figure.low)}, {write(figure.high)}]"
