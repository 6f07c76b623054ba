"""Charts of findings -> PNG files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bftrainer.batch.traces.errors import unreadable
from bftrainer.lab.papers.findings import Chart
from bftrainer.study.plots.canvas import new_canvas

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # colour-blind readers can tell them apart
PAPER_COLOURS = ("#56B4E9", "#E69F00", "#999999", "#000000")


def draw_all(charts: Iterable[Chart], folder: Path) -> dict[str, str]:
    """Write every chart; return the file names by the charts' names.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed; BFT-4002, no file can be written.
    """
    files = {}
    for chart in charts:
        figure = new_canvas((7.0, 4.0), "leave --out out and use --json")
        _draw(figure.subplots(), chart)
        path = folder / f"{chart.name}.png"
        try:
            # Without a date the same replays give the same file.
            figure.savefig(path, metadata={"Software": None})
        except OSError as problem:
            raise unreadable(path, problem) from problem
        files[chart.name] = path.name
    return files


def _draw(axes: Any, chart: Chart) -> None:
    ours = paper = 0
    width = 0.8 / len(chart.plotted)
    for k, plotted in enumerate(chart.plotted):
        if plotted.is_papers:
            colour, paper = PAPER_COLOURS[paper % len(PAPER_COLOURS)], paper + 1
        else:
            colour, ours = COLOURS[ours % len(COLOURS)], ours + 1
        if chart.has_bars:
            at = [i + (k + 0.5) * width - 0.4 for i in range(len(plotted.x))]
            axes.bar(at, plotted.y, width=width, color=colour, label=plotted.label)
            axes.set_xticks(range(len(plotted.x)), plotted.x, rotation=20)
        else:
            style = "--" if plotted.is_papers else "o-"
            axes.plot(plotted.x, plotted.y, style, color=colour, label=plotted.label, markersize=3)
    if chart.is_log:
        axes.set_yscale("log")
    if len(chart.plotted) > 1:
        axes.legend(fontsize=8)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.3)
