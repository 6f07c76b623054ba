"""Draws nodes over time, coloured by trainer, as a PNG file.

The only module that needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from bftrainer.lab.demo.watch import GiveBack, Span, Use
from bftrainer.model.colours import colour_of

ORDINARY: dict[str, Any] = {
    "facecolor": "#B8B8B8",
    "hatch": "////",
    "edgecolor": "#8A8A8A",
    "linewidth": 0,
}
HELD: dict[str, Any] = {"facecolor": "#CDD5DC", "linewidth": 0}
GIVE_BACK_COLOUR = "#C00000"
INK = "#222222"
WIDTH_IN, ROW_IN, MARGINS_IN, DPI = 13.0, 0.42, 3.0, 120
_BAR = 0.82  # of a row's height
_STARTING_ALPHA = 0.35


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The data to draw; times are seconds since the epoch."""

    title: str
    words: str  # below: what was seen, what to do next
    start_s: float
    spans: Sequence[Span]
    trainers: Mapping[str, str]  # trainer_id -> name
    give_backs: Sequence[GiveBack]


def draw(story: Story, path: Path) -> None:
    """Write the picture."""
    nodes = list(dict.fromkeys(span.node for span in story.spans))
    rows_in = ROW_IN * max(3, len(nodes))
    height_in = rows_in + MARGINS_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.055, 2.5 / height_in, 0.93, rows_in / height_in))
    _draw_nodes(axes, story, nodes)
    axes.legend(
        handles=_legend(story),
        loc="upper center",
        bbox_to_anchor=(0.5, -0.45 / rows_in),
        ncols=8,
        frameon=False,
        fontsize=9,
    )
    top = 1 - 0.1 / height_in
    figure.text(0.055, top, story.title, va="top", fontsize=14, fontweight="bold", color=INK)
    figure.text(0.055, 0.1 / height_in, story.words, va="bottom", fontsize=9.5, color=INK,
                linespacing=1.35)  # fmt: skip
    figure.savefig(path, format="png")


def _draw_nodes(axes: Any, story: Story, nodes: Sequence[str]) -> None:
    length_s = max([1.0, *(span.end_s - story.start_s for span in story.spans)])
    for span in story.spans:
        if span.use in (Use.FREE, Use.AWAY):
            continue
        at_s, row = span.start_s - story.start_s, nodes.index(span.node)
        axes.broken_barh([(at_s, span.length_s)], (row - _BAR / 2, _BAR), **_style(span))
        name = story.trainers.get(span.trainer_id, "")
        if span.use is Use.TRAINING and span.length_s / length_s * WIDTH_IN > 0.1 * len(name):
            axes.text(at_s + span.length_s / 2, row, name, ha="center", va="center",
                      fontsize=8.5, color="white")  # fmt: skip
    for give_back in story.give_backs:
        if give_back.node in nodes:
            axes.scatter(give_back.at_s - story.start_s, nodes.index(give_back.node) - _BAR / 2,
                         marker="v", s=42, color=GIVE_BACK_COLOUR, zorder=5,
                         clip_on=False)  # fmt: skip
    axes.set_xlim(0.0, length_s)
    axes.set_ylim(max(1, len(nodes)) - 0.5, -0.62)
    axes.set_yticks(range(len(nodes)), nodes)
    axes.set_xlabel("seconds", color=INK, fontsize=9)
    axes.tick_params(length=0, labelsize=9, colors=INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _style(span: Span) -> dict[str, Any]:
    if span.use is Use.ORDINARY:
        return ORDINARY
    if span.use is Use.HELD:
        return HELD
    alpha = 1.0 if span.use is Use.TRAINING else _STARTING_ALPHA
    return {"facecolor": colour_of(span.trainer_id), "linewidth": 0, "alpha": alpha}


def _legend(story: Story) -> list[Any]:
    return [
        *(Patch(color=colour_of(i), label=name) for i, name in story.trainers.items()),
        Patch(color=INK, alpha=_STARTING_ALPHA, label="starting (tint)"),
        Patch(**HELD, label="held, no worker"),
        Patch(**ORDINARY, label="ordinary job"),
        Patch(facecolor="white", edgecolor="#BBBBBB", label="idle"),
        Line2D([], [], linestyle="", marker="v", color=GIVE_BACK_COLOUR, label="given back"),
    ]
