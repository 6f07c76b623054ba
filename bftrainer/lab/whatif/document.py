"""A ``BusinessCase`` as a JSON document, as text and as a page with figures.

``bftrainer whatif`` prints the text or the document; the page shows the same lines.
"""

from __future__ import annotations

import dataclasses
from html import escape
from pathlib import Path
from typing import Any

from bftrainer.decide import short_gaps
from bftrainer.lab import html
from bftrainer.lab.simulator.metrics import MEANING_OF_U, WHICH_FIGURE
from bftrainer.lab.whatif.advice import BusinessCase, Sweep, idle_confirmations
from bftrainer.lab.whatif.replays import Estimate, times

SCHEMA = "bftrainer/whatif/1"
Row = tuple[str, str]


def as_document(found: BusinessCase, source: str) -> dict[str, Any]:
    """Return the document; times in seconds, amounts in node-hours."""
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
        "assumptions": list(given.sentences()),
        "notes": list(found.notes),
        "warnings": list(found.warnings),
    }


def idle_rows(found: BusinessCase) -> list[Row]:
    """Return the figures of the idle time."""
    idle = found.idle
    unfillable = idle.unfillable_share
    lengths = ", ".join(
        f"{name} {_length(idle.length_s[name])}" for name in ("p10", "p50", "p90", "longest")
    )
    shares = ", ".join(
        f"{one.of_fragments:.0%} under {_length(one.under_s)}" for one in idle.shorter
    )
    of_time = ", ".join(
        f"{one.of_node_time:.1%} under {_length(one.under_s)}" for one in idle.shorter
    )
    return [
        ("nodes", f"{idle.n_nodes:,} ({idle.n_named:,} in the trace)"),
        ("observed", f"{idle.hours:,.1f} h"),
        ("idle share of node-time", f"{idle.idle_share:.2%}"),
        ("accounted for", idle.node_time.sentence()),
        ("of it unfillable", "not known" if unfillable is None else f"{unfillable:.1%}"),
        ("idle nodes on average (N_eq)", f"{idle.eq_nodes:,.1f}"),
        ("idle node-hours per day", f"{idle.node_hours_per_day:,.0f}"),
        ("fragments per day", f"{idle.fragments_per_day:,.0f}"),
        ("their length", lengths),
        ("how many are short", shares),
        ("idle time in those", of_time),
    ]


def advice_rows(found: BusinessCase) -> list[tuple[str, str, str]]:
    """Return the recommended settings: name in the policy, value, reason."""
    trainers, forward, hold = found.sweeps
    poll_s = found.assumptions.poll_interval_s
    confirmations = idle_confirmations(found.hold_down_s, poll_s)
    return [
        ("t_fwd_s", f"{found.t_fwd_s:g}", _why(forward.why, len(forward.points))),
        ("p_jmax", f"{found.p_jmax}", _why(trainers.why, len(trainers.points))),
        (
            "idle_confirmations",
            f"{confirmations}",
            (
                f"{_why(hold.why, len(hold.points))} Hold-down {found.hold_down_s:g} s, with "
                f"poll_interval_s {poll_s:g}."
            ),
        ),
    ]


def _why(why: str, n_points: int) -> str:
    return why if n_points > 1 else "As given."


# Of ``expected_rows``; ">": to the right.
EXPECTED_HEADERS = (
    "POLICY", ">WORK DONE PER DAY", ">SAMPLES PER DAY, 1e6", ">COMPLETED", ">U",
    ">NODE-HOURS PER DAY", ">OF THE IDLE TIME",
)  # fmt: skip


def expected_rows(found: BusinessCase) -> list[tuple[str, ...]]:
    """Return the figures of each policy, under ``EXPECTED_HEADERS``."""
    return [
        (
            one.policy,
            shown(one.reference_node_h_per_day, ",.0f"),
            shown(times(one.samples_per_day, 1e-6), ",.0f"),
            f"{one.completed:,}",
            shown(one.utilization, ".3f"),
            shown(one.node_hours_per_day, ",.0f"),
            shown(one.harvested_share, ".1%"),
        )
        for one in found.expected
    ]


def second_rows(found: BusinessCase) -> list[tuple[str, str, str]]:
    """Return the cost of one more second of each kind."""
    return [
        (
            f"1 s more {one.name}",
            f"{shown(one.node_hours_per_day, ',.2f')} node-hours per day",
            f"{shown(one.share_of_work, '.3%')} of what is trained",
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
    return f"U over {sweep.name}: {', '.join(tried)}"


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


def shown(figure: Estimate, form: str) -> str:
    """Return a figure with its interval."""
    if figure.low is None or figure.high is None:
        return format(figure.value, form)
    low, high = format(figure.low, form), format(figure.high, form)
    return f"{figure.value:{form}} [{low}, {high}]"


def _length(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 300, 170, 46, 34, 12
TITLES = {
    "p_jmax": "Trainers at once (P_jmax)",
    "t_fwd_s": "Forward-looking time T_fwd (s)",
    "hold_down_s": "Hold-down time (s)",
}


def write_page(path: Path, found: BusinessCase, source: str, command: str) -> None:
    """Write the page.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    best = found.expected[0]
    policy = "\n".join(f"{name}: {value}" for name, value, _ in advice_rows(found))
    parts = [
        f"<p><b>{shown(best.node_hours_per_day, ',.0f')} node-hours per day, ",
        f"trained in {shown(best.harvested_share, '.1%')} of the idle time, ",
        f"at U = {shown(best.utilization, '.3f')}.</b></p><p>{escape(MEANING_OF_U)}.</p>",
        html.items(f"Warning: {warning}" for warning in found.warnings),
        "<h2>Idle time</h2>",
        html.table((), idle_rows(found)),
        html.items(short_gaps.sentences(found.short_gaps, None)),
        "<h2>Recommended settings</h2>",
        html.table(("setting", "value", "why"), advice_rows(found)),
        f"<pre>{escape(policy)}</pre><div class='row'>",
        *[_figure(sweep) for sweep in found.sweeps if len(sweep.points) > 1],
        "</div><h2>Expected</h2>",
        html.table([name.strip(">") for name in EXPECTED_HEADERS], expected_rows(found)),
        html.items([WHICH_FIGURE]),
        "<h2>What a second costs</h2>",
        html.table(("", "worth", "that is"), second_rows(found)),
        "<h2>Assumptions</h2>",
        html.items(found.assumptions.sentences()),
        html.items(map(swept_sentence, found.sweeps)),
        html.items([replayed_sentence(found), *above_one(found)]),
        html.items(f"Source: {note}" for note in found.notes),
    ]
    html.write_page(path, f"What bftrainer would make of idle time: {source}", command, parts)


def _figure(sweep: Sweep) -> str:
    """Draw U over the values, evenly spaced because they span orders of magnitude."""
    used = [point.utilization for point in sweep.points]
    low, high = min(used), max(used)
    margin = max(0.002, 0.1 * (high - low))
    low, high = low - margin, high + margin
    step = (WIDTH - LEFT - 16) / max(1, len(used) - 1)
    xs = [LEFT + 8 + k * step for k in range(len(used))]
    floor = HEIGHT - BOTTOM
    ys = [floor - (u - low) / (high - low) * (floor - TOP) for u in used]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(xs, ys, strict=True))
    marks = "".join(
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{5 if p.value == sweep.chosen else 3}' "
        f"fill='{'#D55E00' if p.value == sweep.chosen else '#0072B2'}'/>"
        f"<text x='{x:.1f}' y='{floor + 13}' text-anchor='middle'>{p.value:g}</text>"
        for x, y, p in zip(xs, ys, sweep.points, strict=True)
    )
    scale = "".join(
        f"<text x='{LEFT - 4}' y='{y + 3:.1f}' text-anchor='end'>{u:.3f}</text>"
        f"<line x1='{LEFT}' y1='{y:.1f}' x2='{WIDTH}' y2='{y:.1f}' stroke='#ddd'/>"
        for u, y in ((high - margin, TOP + margin / (high - low) * (floor - TOP)), (low, floor))
    )
    title = TITLES[sweep.name]
    return (
        f"<figure><svg width='{WIDTH}' height='{HEIGHT}' role='img' aria-label='U over "
        f"{escape(title)}'>{scale}<polyline points='{line}' fill='none' stroke='#0072B2'/>"
        f"{marks}<text x='{(LEFT + WIDTH) / 2:.0f}' y='{HEIGHT - 4}' text-anchor='middle'>"
        f"{escape(title)}</text><text x='4' y='{TOP - 2}'>U</text></svg>"
        f"<figcaption>U over {escape(title)}; orange: recommended. {escape(sweep.why)}"
        "</figcaption></figure>"
    )
