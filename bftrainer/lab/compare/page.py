"""Writes a comparison as one HTML page; it loads nothing and has no scripts."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bftrainer import __version__
from bftrainer.batch.traces.errors import unreadable
from bftrainer.lab.compare.arenas import Arena
from bftrainer.lab.compare.table import HEADERS, HOUR_S, Plays, Row, cells, rows_of
from bftrainer.lab.report.page import STYLE
from bftrainer.study.plots.style import matplotlib, new_canvas

OTHERWISE = "leave --report out"
FIGURES = (  # field of Score, unit, axis
    ("utilization", 1.0, "U"),
    ("jct_mean_s", HOUR_S, "mean JCT, h"),
    ("rescales", 1.0, "rescales"),
)


def check_pictures() -> None:
    """Check before the plays that pictures can be drawn.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed.
    """
    matplotlib("figure", OTHERWISE)


def write_page(
    path: Path,
    plays: Plays,
    arenas: Sequence[Arena],
    policies: Sequence[str],
    seeds: Sequence[int],
    command: str,
) -> None:
    """Write the page.

    Raises:
        TraceError: BFT-4002, no file can be there.
    """
    parts = [_section(arena, rows_of(plays, arena.name, policies, seeds)) for arena in arenas]
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>bftrainer compare</title>\n<style>{STYLE}</style></head>\n"
        f"<body><h1>Policies side by side</h1>\n<p>Means over {len(seeds)} seeds with 95%"
        f" confidence intervals; made by bftrainer {__version__} with</p>\n"
        f"<p><code>{escape(command)}</code></p>\n{''.join(parts)}</body></html>\n"
    )
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _section(arena: Arena, rows: Sequence[Row]) -> str:
    head = "".join(f"<th>{escape(name.removeprefix('>'))}</th>" for name in HEADERS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells(row)) + "</tr>\n"
        for row in rows
    )
    return (
        f"<h2>{escape(arena.name)}</h2>\n<p>{escape(arena.about)}</p>\n"
        f"<table><tr>{head}</tr>\n{body}</table>\n{_figure(rows)}\n"
    )


def _figure(rows: Sequence[Row]) -> str:
    shown = [one for one in FIGURES if all(row.figures[one[0]] is not None for row in rows)]
    if not shown:
        return ""
    canvas = new_canvas((4.0 * len(shown), 0.9 + 0.28 * len(rows)), OTHERWISE)
    all_axes = canvas.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (name, unit, label) in zip(all_axes, shown, strict=True):
        found = [row.figures[name] for row in rows]
        means = [one.mean / unit for one in found if one is not None]
        halves = [(one.half or 0.0) / unit for one in found if one is not None]
        places = range(len(rows))
        axes.barh(places, means, xerr=halves, color="#7aa6c2", ecolor="#333")
        axes.set_yticks(places, [row.policy for row in rows])
        axes.set_xlabel(label)
    all_axes[0].invert_yaxis()
    picture = io.BytesIO()
    canvas.savefig(picture, format="svg", metadata={"Date": None})
    data = base64.b64encode(picture.getvalue()).decode()
    return (
        f'<figure><img alt="U, JCT and rescales" src="data:image/svg+xml;base64,{data}"></figure>'
    )
