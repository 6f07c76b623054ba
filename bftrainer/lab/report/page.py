"""Writes a report of replays: one page with figures, as HTML or as a picture.

Called by ``bftrainer simulate --report``. The HTML is self-contained: it embeds its pictures,
loads nothing and has no scripts.
"""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bftrainer import __version__
from bftrainer.batch.traces.text import unreadable
from bftrainer.lab.report.figures import FIGURES, Figure
from bftrainer.lab.report.tables import ReportSetup, check_place, label_of, shown_value
from bftrainer.lab.simulator.metrics import WORDS
from bftrainer.lab.simulator.session import ReplayRun
from bftrainer.model.errors import UsageError
from bftrainer.study.plots import matplotlib, new_canvas

OTHERWISE = "leave --report out"
ENDINGS = (".html", ".png")
STYLE = (
    "body{font:16px/1.45 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1.5em 0}"
    "td,th{padding:.15em .9em;border-bottom:1px solid #ddd;text-align:right}"
    "td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}"
    "td:last-child{color:#666;font-size:85%}figure{margin:2.5em 0}img{max-width:100%}"
    "figcaption{font-size:90%}code{font-size:85%;overflow-wrap:anywhere}"
)


def check_destination(path: Path) -> None:
    """Check before the replay that the page can be written after it.

    Raises:
        UsageError: BFT-4110, the name ends in neither .html nor .png.
        TraceError: BFT-4004, matplotlib is not installed; BFT-4002, no file can be there.
    """
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(
            "BFT-4110",
            f"{path}: a report is HTML or a picture.",
            f"End the name in {' or '.join(ENDINGS)}.",
        )
    matplotlib("figure", OTHERWISE)
    check_place(path)


def write_report(
    path: Path,
    runs: Sequence[ReplayRun],
    setup: ReportSetup,
    progress: Callable[[float], None] = lambda _: None,
) -> None:
    """Write the page in the format given by the ending of its name.

    Raises:
        UsageError: BFT-4110, see above.
        TraceError: BFT-4004 and BFT-4002, see above.
    """
    check_destination(path)
    draw = _as_html if path.suffix.lower() == ".html" else _as_png
    content = draw(runs, setup, progress)
    try:
        path.write_bytes(content)
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _as_html(
    runs: Sequence[ReplayRun], setup: ReportSetup, progress: Callable[[float], None]
) -> bytes:
    parts = []
    for number, figure in enumerate(FIGURES, start=1):
        parts.append(_figure_html(figure, number, runs, setup))
        progress(number / len(FIGURES))
    names = ", ".join(run.choices.policy for run in runs)
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">\n"
        f"<title>bftrainer simulate: {escape(names)}</title>\n<style>{STYLE}</style></head>\n"
        f"<body><h1>Replay of idle nodes: {escape(names)}</h1>\n"
        f"<p>{escape(setup.sentence(runs))}</p>\n"
        f"<p>Made by bftrainer {__version__} with</p>\n"
        f"<p><code>{escape(setup.command)}</code></p>\n"
        f"{_table_html(runs)}\n{''.join(parts)}</body></html>\n"
    )
    return page.encode()


def _figure_html(figure: Figure, number: int, runs: Sequence[ReplayRun], setup: ReportSetup) -> str:
    canvas = new_canvas((8.0, 4.5), OTHERWISE)
    figure.draw(canvas.add_subplot(), runs)
    picture = base64.b64encode(_saved(canvas, "svg")).decode()
    return (
        f'<figure id="{figure.key}"><img alt="{escape(figure.title)}" '
        f'src="data:image/svg+xml;base64,{picture}">\n'
        f"<figcaption><b>Figure {number}. {escape(figure.title)}.</b> "
        f"{escape(figure.caption(runs))} {escape(setup.sentence(runs))} "
        f"<code>{escape(setup.command)}</code></figcaption></figure>\n"
    )


def _table_html(runs: Sequence[ReplayRun]) -> str:
    head = "".join(f"<th>{escape(run.choices.policy)}</th>" for run in runs)
    rows = "".join(
        f"<tr><td>{escape(label_of(name))}</td>"
        + "".join(f"<td>{shown_value(run.metrics, name)}</td>" for run in runs)
        + f"<td>{escape(word.meaning)}</td></tr>\n"
        for name, word in WORDS.items()
    )
    return f"<table><tr><th></th>{head}<th></th></tr>\n{rows}</table>"


def _as_png(
    runs: Sequence[ReplayRun], setup: ReportSetup, progress: Callable[[float], None]
) -> bytes:
    canvas = new_canvas((13.0, 15.5), OTHERWISE)
    grid = canvas.subplots(3, 2).flat
    words = [setup.sentence(runs), f"Made by bftrainer {__version__} with: {setup.command}"]
    for number, (axes, figure) in enumerate(zip(grid, FIGURES, strict=False), start=1):
        figure.draw(axes, runs)
        axes.set_title(f"Figure {number}. {figure.title}", fontsize=11, loc="left")
        words.append(f"Figure {number}. {figure.caption(runs)}")
        progress(number / (len(FIGURES) + 1))
    last = list(canvas.axes)[len(FIGURES)]
    last.axis("off")
    text = "\n\n".join(textwrap.fill(word, 78) for word in words)
    last.text(0.0, 1.0, text, va="top", fontsize=9, transform=last.transAxes, parse_math=False)
    return _saved(canvas, "png")


def _saved(figure: Any, form: str) -> bytes:
    """Return the file of a figure without date or random names: equal figures give equal files."""
    stream = io.BytesIO()
    with matplotlib("", OTHERWISE).rc_context({"svg.hashsalt": "bftrainer"}):
        figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()
