"""Writes a report of replays: one page with figures, as HTML or as a picture.

Called by ``bftrainer simulate --report``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from bftrainer import __version__
from bftrainer.lab.html import OTHERWISE, picture, saved, table, write_file, write_page
from bftrainer.lab.report.figures import FIGURES
from bftrainer.lab.report.tables import ReportSetup, check_place, label_of, shown_value
from bftrainer.lab.simulator.metrics import WORDS
from bftrainer.lab.simulator.session import ReplayRun
from bftrainer.model.errors import UsageError
from bftrainer.study.plots import matplotlib, new_canvas

ENDINGS = (".html", ".png")


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
    if path.suffix.lower() == ".png":
        write_file(path, _as_png(runs, setup, progress))
        return
    sentence, names = setup.sentence(runs), [run.choices.policy for run in runs]
    rows = [
        (label_of(name), *(shown_value(run.metrics, name) for run in runs), word.meaning)
        for name, word in WORDS.items()
    ]
    parts = [f"<p>{escape(sentence)}</p>", table(("", *names, ""), rows)]
    for number, figure in enumerate(FIGURES, start=1):
        canvas = new_canvas((8.0, 4.5), OTHERWISE)
        figure.draw(canvas.add_subplot(), runs)
        parts.append(
            f'<figure id="{figure.key}">{picture(canvas, figure.title)}\n'
            f"<figcaption><b>Figure {number}. {escape(figure.title)}.</b> "
            f"{escape(figure.caption(runs))} {escape(sentence)} "
            f"<code>{escape(setup.command)}</code></figcaption></figure>"
        )
        progress(number / len(FIGURES))
    write_page(path, f"Replay of idle nodes: {', '.join(names)}", setup.command, parts)


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
    return saved(canvas, "png")
