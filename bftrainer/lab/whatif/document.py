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
Row = tuple[str, str]


def as_document(found: BusinessCase, source: str, now: LendingNow | None = None) -> dict[str, Any]:
    """Return the document; times in seconds, amounts in node-hours.

    Args:
        found: the business case.
        source: name of the trace.
        now: what the running site could lend one by one.
    """
    given = found.assumptions
    return {
        "schema": SCHEMA,
        "trace": source,
        "idle": dataclasses.asdict(found.idle),
        "recommended": {
            "t_fwd_s": found.t_fwd_s,
            "p_jmax": found.p_jmax,
            "hold_down_s": found.hold_down_s,
            "idle_confirmations": idle_confirmations(found.hold_down_s, given.poll_interval_s),
            "poll_interval_s": given.poll_interval_s,
        },
        "sweeps": [dataclasses.asdict(sweep) for sweep in found.sweeps],
        "expected": [dataclasses.asdict(one) for one in found.expected],
        "one_second_more": [dataclasses.asdict(one) for one in found.seconds],
        "short_gaps": dataclasses.asdict(found.short_gaps),
        "replayed": dataclasses.asdict(found.replayed),
        "costs_s": given.costs.by_name(),
        "seed": given.seed,
        "assumptions": list(given.sentences(found.idle.n_node_types)),
        "notes": [*found.left_out, *found.notes],
        "warnings": list(found.warnings),
        "answer": answer(found),
        "kept_back": dataclasses.asdict(found.kept),
        "with_policy_node_hours_per_day": dict(
            zip(("if_all_planned", "if_none_planned"), with_policy(found), strict=True)
        ),
        "kinds": [dataclasses.asdict(kind) for kind in found.kinds],
        "idle_over_time": dataclasses.asdict(found.over_time),
        "lending_now": None if now is None else dataclasses.asdict(now),
    }


def report_of(
    found: BusinessCase,
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
        found: the business case.
        source: name of the trace.
        command: repeats what is shown.
        week: the idle nodes over time.
        sweeps: U over the values of each setting.
        without_pictures: why there are none.
        now: what the running site could lend one by one.
    """
    return ReportPage(
        title=f"What idle nodes are worth: {source}",
        answers=(answer(found),),
        more=(
            *(f"Of the log, {sentence}." for sentence in found.left_out),
            which_figure(found),
        ),
        warnings=found.warnings,
        sections=(
            Section(
                title="When and where nodes are idle",
                text=without_pictures,
                pictures=week,
                drawn=week_drawn(found),
                tables=(_table(*kind_rows(found)),),
            ),
            *(*gpu_sections(found.idle.gpus), *lending_sections(now)),
            Section(title=_after_kept(found), text=kept_sentences(found)),
            Section(
                title="Recommended settings",
                text=(advice_sentence(found),),
                pictures=sweeps,
                is_small=True,
                tables=(
                    _table(("SETTING", ">RECOMMENDED", "WHY"), advice_rows(found)),
                    *_by_work(found),
                ),
                code="\n".join(policy_lines(found)),
            ),
            _before_kept(found),
            Section(
                title="What a second costs",
                tables=(_table(SECOND_HEADERS, second_rows(found)),),
            ),
            Section(title="Idle time in figures", tables=(_table(("", ""), idle_rows(found)),)),
            Section(title="Assumptions", items=tuple(_assumptions(found))),
        ),
        command=command,
    )


def _before_kept(found: BusinessCase) -> Section:
    return Section(
        title="Before the policy keeps anything back: replays with these settings",
        text=(TRAINED_AND_DONE, *expected_sentences(found)),
        tables=(_table(EXPECTED_HEADERS, expected_rows(found)),),
        items=(WHICH_FIGURE,),
    )


def _assumptions(found: BusinessCase) -> Iterator[str]:
    yield from found.assumptions.sentences(found.idle.n_node_types)
    yield from (swept_sentence(sweep) for sweep in found.sweeps if len(sweep.points) > 1)
    yield replayed_sentence(found)
    yield from above_one(found)
    yield from (f"Source: {note}" for note in found.notes)


def _table(headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> TextTable:
    return TextTable(headers=headers, rows=tuple(rows))


def idle_means(over: IdleOverTime) -> list[float]:
    """Return the mean number of idle nodes of all kinds in each window."""
    return [sum(of_kinds) for of_kinds in zip(*over.nodes.values(), strict=True)]


def averaged(over: IdleOverTime) -> str:
    """Return over how long the idle nodes are averaged, and the most of them."""
    window_min = (over.edges_s[1] - over.edges_s[0]) / MINUTE_S
    highest = quantity(max(idle_means(over)))
    momentary = f"at one moment {over.most_nodes:,}"
    return f"the mean of {quantity(window_min)} min, up to {highest} ({momentary})"


def week_drawn(found: BusinessCase) -> tuple[str, ...]:
    """Return the idle nodes over time in lines of bars, one for each mean of the page's picture."""
    over = found.over_time
    nodes = idle_means(over)
    most = max(nodes)
    bars = level_line([count / most if most else 0.0 for count in nodes])
    from_h = [f"{(edge_s - over.edges_s[0]) / HOUR_S:g}" for edge_s in over.edges_s[::LINE_WIDTH]]
    begins = range(0, len(bars), LINE_WIDTH)
    width = max(map(len, from_h))
    lines = (
        f"{hour:>{width}} h {bars[begin : begin + LINE_WIDTH]}"
        for hour, begin in zip(from_h, begins, strict=False)
    )
    hours = time_span(found.idle.hours * HOUR_S)
    return (f"idle nodes over {hours}, each bar {averaged(over)}:", *lines)


def with_policy(found: BusinessCase) -> tuple[float, float]:
    """Return the least and most node-hours per day that the policy's reserve and gap leave.

    The replays' share of the idle time is taken to hold for what is left of it.
    """
    harvest = found.expected[0].node_hours_per_day.value
    return harvest * found.kept.after_both, harvest * found.kept.after_reserve


def answer(found: BusinessCase) -> str:
    """Return what the site would gain, in one sentence."""
    idle = found.idle.node_hours_per_day
    least, most = with_policy(found)
    nodes = _range(quantity(least / DAY_H), quantity(most / DAY_H))
    shares = _range(f"{least / idle:.0%}", f"{most / idle:.0%}")
    return (
        f"Trainers could have {_left(found)} node-hours a day of the {quantity(idle)} that are "
        f"idle: {shares}, like {nodes} nodes that train all day."
    )


def _left(found: BusinessCase) -> str:
    """Return the node-hours per day that the policy leaves."""
    return _range(*map(quantity, with_policy(found)))


def _after_kept(found: BusinessCase) -> str:
    return f"After what the policy keeps back: {_left(found)} node-hours a day"


def which_figure(found: BusinessCase) -> str:
    """Return which of the report's figures is for whom."""
    best = found.expected[0]
    trained, done = (
        quantity(figure.value)
        for figure in (best.node_hours_per_day, best.reference_node_h_per_day)
    )
    return (
        f"Show {_left(found)} to those who decide: it is what the policy leaves. The {trained} "
        f"node-hours trained and {done} of work done further below are of replays that keep "
        "nothing back; they serve to compare settings and policies."
    )


def _range(least: str, most: str) -> str:
    return most if least == most else f"{least} to {most}"


def kept_sentences(found: BusinessCase) -> tuple[str, ...]:
    """Return what the policy's reserve and least gap keep of the idle time."""
    kept, best = found.kept, found.expected[0]
    least, most = with_policy(found)
    count, margin_s = kept.reserve_nodes_per_type, kept.gap_margin_s
    shortest_s = kept.min_gap_s + margin_s
    return (
        (
            f"With nothing kept back the replays use {shown(best.node_hours_per_day)} "
            f"node-hours a day, {shown(best.harvested_share, '.1%')} of the idle time."
        ),
        (
            f"The reserve ({counted(count, 'idle node')} of each kind, "
            f"reserve_nodes_per_type) leaves {quantity(most)} of them."
        ),
        (
            "A gap that ends with a planned job is lost if it is shorter than "
            f"{shortest_s:g} s (min_gap_s {kept.min_gap_s:g} and gap_margin_s {margin_s:g}), and "
            f"the last {margin_s:g} s of a longer one. If all gaps ended so, {quantity(least)} "
            "would be left; accounting does not tell which jobs were planned."
        ),
        *islice(short_gaps.sentences(found.short_gaps, None), 1, None),  # the first says the same
    )


KIND_HEADERS = ("NODES OF", ">NODES", ">IDLE, MEAN", ">IDLE SHARE", ">IDLE NODE-HOURS PER DAY")
KEPT_HEADERS = (">IDLE GPU-HOURS PER DAY", ">KEPT BY RESERVE", ">LOST IF ALL GAPS ARE PLANNED")


def kind_rows(found: BusinessCase) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headers and rows of the idle time by partition and type of node."""
    has_gpus = any(kind.gpus for kind in found.kinds)
    kept_headers = KEPT_HEADERS if has_gpus else KEPT_HEADERS[1:]
    return (*KIND_HEADERS, *kept_headers), [_kind_row(kind, has_gpus) for kind in found.kinds]


def _kind_row(kind: KindOfNodes, has_gpus: bool) -> tuple[str, ...]:
    gpu_hours = "-" if kind.gpus is None else quantity(kind.gpus * kind.node_hours_per_day)
    return (
        kind.name or "the whole machine",
        f"{kind.n_nodes:,}",
        quantity(kind.eq_nodes),
        f"{kind.idle_share:.1%}",
        quantity(kind.node_hours_per_day),
        *([gpu_hours] if has_gpus else []),
        f"{kind.reserve_share:.1%}",
        f"{kind.planned_share:.1%}",
    )


def idle_rows(found: BusinessCase) -> list[Row]:
    """Return the figures of the idle time."""
    idle = found.idle
    unfillable = idle.unfillable_share
    lengths = ", ".join(
        f"{name} {time_span(idle.length_s[name])}" for name in ("p10", "p50", "p90", "longest")
    )
    shares = ", ".join(
        f"{one.of_fragments:.0%} under {time_span(one.under_s)}" for one in idle.shorter
    )
    of_time = ", ".join(
        f"{one.of_node_time:.1%} under {time_span(one.under_s)}" for one in idle.shorter
    )
    return [
        ("nodes", f"{idle.n_nodes:,} ({idle.n_named:,} in the trace)"),
        ("observed", time_span(idle.hours * HOUR_S)),
        ("idle share of node-time", f"{idle.idle_share:.2%}"),
        ("accounted for", idle.node_time.sentence()),
        ("of it unfillable", "not known" if unfillable is None else f"{unfillable:.1%}"),
        ("idle nodes on average (N_eq)", quantity(idle.eq_nodes)),
        ("idle node-hours per day", quantity(idle.node_hours_per_day)),
        ("fragments per day", quantity(idle.fragments_per_day)),
        ("their length", lengths),
        ("how many are short", shares),
        ("idle time in those", of_time),
    ]


NO_CHANGE = "no change"


def advice_rows(found: BusinessCase) -> list[tuple[str, str, str]]:
    """Return the recommended settings: name in the policy, value, reason."""
    trainers, forward, hold = found.sweeps
    poll_s = found.assumptions.poll_interval_s
    confirmations = idle_confirmations(found.hold_down_s, poll_s)
    held = f" Hold-down {found.hold_down_s:g} s, with poll_interval_s {poll_s:g}."
    return [
        ("t_fwd_s", _value(forward, f"{found.t_fwd_s:g}"), _why(forward)),
        ("p_jmax", _value(trainers, f"{found.p_jmax}"), _why(trainers)),
        ("idle_confirmations", _value(hold, f"{confirmations}"), f"{_why(hold)}{held}"),
    ]


def _value(sweep: Sweep, value: str) -> str:
    is_alike = len(sweep.points) > 1 and not sweep.is_beyond_chance
    return NO_CHANGE if is_alike else value


def _by_work(found: BusinessCase) -> Iterator[TextTable]:
    """Yield the figures that decide where these are not U."""
    for sweep in found.sweeps:
        if sweep.is_by_work and len(sweep.points) > 1:
            headers = (f">{sweep.name.upper()}", f">WORK DONE AGAINST {sweep.chosen:g}", ">U")
            yield _table(headers, [_point_row(sweep, point) for point in sweep.points])


def _point_row(sweep: Sweep, point: SweepPoint) -> tuple[str, ...]:
    against = Estimate(value=point.gain, low=point.gain_low, high=point.gain_high)
    used = Estimate(value=point.utilization, low=point.low, high=point.high)
    is_recommended = point.value == sweep.chosen and sweep.is_beyond_chance
    chosen = "recommended" if is_recommended else NO_CHANGE
    return (
        f"{point.value:g}",
        chosen if point.value == sweep.chosen else shown(against, "+.1%"),
        shown(used, ".3f"),
    )


def advice_sentence(found: BusinessCase) -> str:
    """Return which settings are worth a change, and which are not."""
    tried = [(name, sweep) for name, sweep in _by_key(found) if len(sweep.points) > 1]
    told = [(name, sweep) for name, sweep in tried if sweep.is_beyond_chance]
    changed = [name for name, sweep in told if sweep.chosen != sweep.usual]
    kept = [name for name, sweep in told if sweep.chosen == sweep.usual]
    alike = [name for name, sweep in tried if not sweep.is_beyond_chance]
    parts = [f"Set {_listed(changed)}." if changed else "Change nothing in the policy."]
    if kept:
        parts.append(f"Of {_listed(kept)} the policy's own value is recommended.")
    if alike:
        parts.append(f"{NO_DIFFERENCE} was seen for {_listed(alike)}.")
    return " ".join(parts) if tried else "All settings are as given."


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def policy_lines(found: BusinessCase) -> list[str]:
    """Return the lines for the policy: what is worth a change, and what was given."""
    keys = {
        name
        for name, sweep in _by_key(found)
        if sweep.chosen != sweep.usual and (sweep.is_beyond_chance or len(sweep.points) == 1)
    }
    return [f"{name}: {value}" for name, value, _ in advice_rows(found) if name in keys]


def _by_key(found: BusinessCase) -> list[tuple[str, Sweep]]:
    """Return the sweeps by the policy's keys, in the order of ``advice_rows``."""
    trainers, forward, hold = found.sweeps
    return [("t_fwd_s", forward), ("p_jmax", trainers), ("idle_confirmations", hold)]


def _why(sweep: Sweep) -> str:
    return sweep.why if len(sweep.points) > 1 else "As given."


# Of ``expected_rows``; ">": to the right.
EXPECTED_HEADERS = (
    "POLICY", ">WORK DONE PER DAY, NODE-HOURS", ">AGAINST THE FIRST", ">SAMPLES PER DAY, 1e6",
    ">COMPLETED", ">U", ">NODE-HOURS TRAINED PER DAY", ">OF THE IDLE TIME",
)  # fmt: skip
TRAINED_AND_DONE = (
    "A node-hour trained is an hour in which a trainer trains on a node. A node-hour of work done "
    "is what a trainer does in an hour alone on one node: on several it mostly does less on each."
)


def expected_rows(found: BusinessCase) -> list[tuple[str, ...]]:
    """Return the figures of each policy, under ``EXPECTED_HEADERS``."""
    return [
        (
            one.policy,
            shown(one.reference_node_h_per_day),
            "-" if one.work_against is None else shown(one.work_against, "+.1%"),
            shown(times(one.samples_per_day, 1e-6)),
            f"{one.completed:,}",
            shown(one.utilization, ".3f"),
            shown(one.node_hours_per_day),
            shown(one.harvested_share, ".1%"),
        )
        for one in found.expected
    ]


def expected_sentences(found: BusinessCase) -> list[str]:
    """Return how each further policy compares with the first one."""
    first = found.expected[0].policy
    said = []
    for one in found.expected[1:]:
        gain = one.work_against
        if gain is None or gain.low is None:
            said.append(f"{one.policy}: the trace is too short to compare it with {first}.")
        elif gain.is_beyond_chance:
            word = "more" if gain.value > 0 else "less"
            size, *ends = (f"{abs(share):.1%}" for share in (gain.value, gain.low, gain.high or 0))
            low, high = sorted(ends, key=lambda end: float(end[:-1]))
            said.append(f"{one.policy} does {size} {word} work than {first} ({low} to {high}).")
        else:
            said.append(f"{one.policy}: {NO_DIFFERENCE[0].lower()}{NO_DIFFERENCE[1:]}.")
    return said


SECOND_HEADERS = ("ONE SECOND MORE OF", ">COSTS NODE-HOURS PER DAY", ">OF WHAT IS TRAINED")


def second_rows(found: BusinessCase) -> list[tuple[str, str, str]]:
    """Return the cost of one more second of each kind."""
    return [
        (
            one.name,
            shown(one.node_hours_per_day),
            shown(one.share_of_work, ".3%"),
        )
        for one in found.seconds
    ]


def replayed_sentence(found: BusinessCase) -> str:
    """Return how much of the trace was replayed."""
    one = found.replayed
    nodes = "all nodes"
    if one.part_of_idle < 1.0:
        nodes = (
            f"{one.nodes:,} neighbouring nodes with {one.part_of_idle:.0%} of the idle time; "
            "P_jmax is scaled up"
        )
    interval = (
        "Intervals are 95% bootstrap over these stretches."
        if found.expected[0].utilization.low is not None
        else "The trace is too short for intervals."
    )
    return (
        f"Replayed: {nodes}; {one.coarse_hours:,.1f} h in {one.coarse_stretches} stretches for "
        f"each value tried, {one.fine_hours:,.1f} h in {one.fine_stretches} for what is expected. "
        f"{interval}"
    )


def swept_sentence(sweep: Sweep) -> str:
    """Return U at each value tried, with its interval."""
    tried = [
        f"{p.value:g}: {shown(Estimate(value=p.utilization, low=p.low, high=p.high), '.3f')}"
        for p in sweep.points
    ]
    aside = " (the work done decides, above)" if sweep.is_by_work else ""
    return f"U over {sweep.name}{aside}: {', '.join(tried)}"


def above_one(found: BusinessCase) -> tuple[str, ...]:
    """Explain a U above 1, if there is one."""
    used = [one.utilization for one in found.expected]
    highest = [p.high or p.utilization for sweep in found.sweeps for p in sweep.points]
    if max(*highest, *[one.high or one.value for one in used]) <= 1.0:
        return ()
    why = (
        "A U above 1 is no mistake. It is measured against trainers that share the nodes equally"
        " (A_s, eqs. 17 to 19 of the BFTrainer paper), and unequal shares can be better: some sizes"
        f" of {found.assumptions.network.name} process more samples per node than their neighbours."
    )
    return (why,)


def shown(figure: Estimate, form: str = "") -> str:
    """Return a figure with its interval, as quantities if no format is given."""
    ends = [end for end in (figure.low, figure.high) if end is not None]
    value, *ends_shown = (
        format(number, form) if form else quantity(number) for number in (figure.value, *ends)
    )
    return f"{value} [{', '.join(ends_shown)}]" if len(ends_shown) == 2 else value
