"""The business case as one self-contained HTML page, with SVG figures drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bftrainer.lab.whatif import document
from bftrainer.lab.whatif.advice import Sweep
from bftrainer.lab.whatif.study import Study

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 300, 170, 46, 34, 12
STYLE = """\
body{font:15px/1.45 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}
h1{font-size:1.5em}h2{font-size:1.1em;margin:1.4em 0 .4em}
table{border-collapse:collapse}td,th{padding:.15em .9em .15em 0;text-align:left;
vertical-align:top}th{font-weight:600;border-bottom:1px solid #999}
.big{font-size:1.2em}figure{display:inline-block;margin:0 1em 0 0}
figcaption{font-size:.85em;max-width:300px}code,pre{background:#f3f3f3;padding:.1em .3em}
svg text{font:10px sans-serif}li{margin:.1em 0}"""
TITLES = {
    "p_jmax": "Trainers at once (P_jmax)",
    "t_fwd_s": "Forward-looking time T_fwd (s)",
    "hold_down_s": "Hold-down time (s)",
}


def page(found: Study, source: str, command: str) -> str:
    """Return the page."""
    best = found.expected[0]
    policy = "\n".join(f"{name}: {value}" for name, value, _ in document.advice_rows(found))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>What if: {escape(source)}</title><style>{STYLE}</style></head><body>",
        f"<h1>What bftrainer would harvest: {escape(source)}</h1>",
        "<p class='big'>",
        f"{document.shown(best.node_hours_per_day, ',.0f')} node-hours per day, ",
        f"{document.shown(best.harvested_share, '.1%')} of the idle time, ",
        f"at U = {document.shown(best.utilization, '.3f')}.</p>",
        _section("Idle time", ("", ""), document.idle_rows(found)),
        _section("Recommended settings", ("setting", "value", "why"), document.advice_rows(found)),
        f"<pre>{escape(policy)}</pre>",
        *[_figure(sweep) for sweep in found.sweeps if len(sweep.points) > 1],
        _section(
            "Expected",
            ("policy", "U", "node-hours per day", "of the idle time"),
            document.expected_rows(found),
        ),
        _section("What a second costs", ("", "worth", "that is"), document.second_rows(found)),
        "<h2>Assumptions</h2><ul>",
        *[f"<li>{escape(line)}</li>" for line in found.assumptions.sentences()],
        *[f"<li>{escape(document.swept_sentence(sweep))}</li>" for sweep in found.sweeps],
        f"<li>{escape(document.replayed_sentence(found))}</li>",
        *[f"<li>{escape(line)}</li>" for line in document.above_one(found)],
        *[f"<li>Source: {escape(note)}</li>" for note in found.notes],
        f"</ul><p>Made by <code>{escape(command)}</code></p></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _section(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in headers) if any(headers) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<h2>{escape(title)}</h2><table><tr>{head}</tr>{body}</table>"


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
