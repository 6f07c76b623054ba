"""Draws the picture at the end of the demonstration as a PNG file.

Above, nodes over time, coloured by trainer; below, how many nodes were offered and which trainers
used them. Called by ``run``; the only module here that needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.demo.journal_facts import GiveBack
from bftrainer.demo.samples import ActivitySpan, Use, taken

# Okabe and Ito's palette: told apart by everybody, also in print.
TRAINER_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
ORDINARY_COLOUR = "#B8B8B8"
ORDINARY_HATCH_COLOUR = "#8A8A8A"
HELD_COLOUR = "#F3D6D6"
FREE_COLOUR = "#FFFFFF"
GIVE_BACK_COLOUR = "#C00000"
INK = "#222222"
WIDTH_IN, DPI = 13.0, 120
ROW_IN, LOWER_IN, MARGINS_IN = 0.42, 1.7, 1.9
SAME_EVENT_S = 2.0  # a node given back and taken over within this
_BAR = 0.82  # of a row's height


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The data to draw; times are seconds since the epoch."""

    title: str
    subtitle: str
    start_s: float
    end_s: float
    spans: Sequence[ActivitySpan]
    trainers: Mapping[str, str]  # trainer_id -> name, in the order of their colours
    give_backs: Sequence[GiveBack]


def draw(story: Story, path: Path) -> None:
    """Write the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - extra [demo]
    from matplotlib.figure import Figure  # noqa: PLC0415

    nodes = list(dict.fromkeys(span.node for span in story.spans))
    rows_in = ROW_IN * max(3, len(nodes))
    height_in = rows_in + LOWER_IN + MARGINS_IN
    figure = Figure(figsize=(WIDTH_IN, height_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    left, right = 0.055, 0.985
    bottom_in = 0.95  # axis label and legend
    lower = figure.add_axes(
        (left, bottom_in / height_in, right - left, LOWER_IN / height_in), facecolor="white"
    )
    upper = figure.add_axes(
        (
            left,
            (bottom_in + LOWER_IN + 0.18) / height_in,
            right - left,
            rows_in / height_in,
        ),
        sharex=lower,
    )
    _draw_nodes(upper, story, nodes)
    _draw_sizes(lower, story, len(nodes))
    figure.text(left, 1 - 0.18 / height_in, story.title, ha="left", va="top", fontsize=14,
                fontweight="bold", color=INK)  # fmt: skip
    figure.text(left, 1 - 0.46 / height_in, story.subtitle, ha="left", va="top", fontsize=10,
                color="#555555")  # fmt: skip
    handles = _legend(story)
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=((left + right) / 2, 0.06 / height_in),
        ncols=len(handles),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.3,
    )
    figure.savefig(path, format="png")


def colour_of(story: Story, trainer_id: str) -> str:
    """Return a trainer's colour."""
    order = list(story.trainers)
    return TRAINER_COLOURS[order.index(trainer_id) % len(TRAINER_COLOURS)]


def _tint(colour: str) -> str:
    """Mix a colour with a lot of white."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - 0.32 * (255 - part)):02X}" for part in parts)


def _draw_nodes(axes: Any, story: Story, nodes: Sequence[str]) -> None:
    row_of = {node: row for row, node in enumerate(nodes)}
    axes.set_xlim(0.0, max(1.0, story.end_s - story.start_s))
    for span in story.spans:
        if span.use in (Use.FREE, Use.AWAY):
            continue
        style = _style(story, span)
        axes.broken_barh(
            [(span.start_s - story.start_s, span.length_s)],
            (row_of[span.node] - _BAR / 2, _BAR),
            **style,
        )
    _name_long_spans(axes, story, row_of)
    before_asked = [(g.node, g.at_s) for g in story.give_backs if g.node in row_of]
    asked = [
        (node, at_s)
        for node, at_s in taken(story.spans)
        if not any(n == node and abs(at_s - g_s) < SAME_EVENT_S for n, g_s in before_asked)
    ]
    for marks, face in ((before_asked, GIVE_BACK_COLOUR), (asked, "white")):
        axes.scatter(
            [at_s - story.start_s for _, at_s in marks],
            [row_of[node] - _BAR / 2 for node, _ in marks],
            marker="v",
            s=42,
            color=face,
            edgecolors=GIVE_BACK_COLOUR,
            linewidths=1.0,
            zorder=5,
            clip_on=False,
        )
    axes.set_ylim(len(nodes) - 0.5, -0.5 - 0.12)
    axes.set_yticks(range(len(nodes)), nodes)
    axes.tick_params(axis="y", length=0, labelsize=10, colors=INK)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    for row in range(len(nodes) - 1):
        axes.axhline(row + 0.5, color="#EEEEEE", linewidth=0.8, zorder=0)
    _frame(axes)


def _style(story: Story, span: ActivitySpan) -> dict[str, Any]:
    match span.use:
        case Use.TRAINING:
            return {"facecolors": colour_of(story, span.trainer_id), "linewidth": 0}
        case Use.STARTING:
            return {"facecolors": _tint(colour_of(story, span.trainer_id)), "linewidth": 0}
        case Use.HELD:
            return {"facecolors": HELD_COLOUR, "linewidth": 0}
        case _:
            return {
                "facecolors": ORDINARY_COLOUR,
                "hatch": "////",
                "edgecolor": ORDINARY_HATCH_COLOUR,
                "linewidth": 0,
            }


def _name_long_spans(axes: Any, story: Story, row_of: Mapping[str, int]) -> None:
    """Write a trainer's name where there is room for it."""
    per_second_in = WIDTH_IN * 0.93 / max(1.0, story.end_s - story.start_s)
    for span in story.spans:
        name = story.trainers.get(span.trainer_id, "")
        if span.use is Use.TRAINING and span.length_s * per_second_in > 0.085 * len(name) + 0.12:
            axes.text(
                span.start_s - story.start_s + span.length_s / 2,
                row_of[span.node],
                name,
                ha="center",
                va="center",
                fontsize=8.5,
                color="white",
            )


def _draw_sizes(axes: Any, story: Story, n_nodes: int) -> None:
    """Stack the nodes on which each trainer trains under the line of what is offered."""
    times = sorted({t for s in story.spans for t in (s.start_s, s.end_s)})
    if len(times) < 2:
        return
    at = [t - story.start_s for t in times]
    base = [0.0] * len(times)
    for trainer_id in story.trainers:
        counts = _count(
            [s for s in story.spans if s.use is Use.TRAINING and s.trainer_id == trainer_id], times
        )
        top = [b + c for b, c in zip(base, counts, strict=True)]
        axes.fill_between(
            at, base, top, step="post", color=colour_of(story, trainer_id), linewidth=0
        )
        base = top
    offered = _count([s for s in story.spans if s.use.is_offered], times)
    axes.step(at, offered, where="post", color=INK, linewidth=1.3)
    axes.set_ylim(0, n_nodes + 0.4)
    axes.set_yticks(range(0, n_nodes + 1, max(1, n_nodes // 3)))
    axes.set_ylabel("nodes", color=INK, fontsize=10)
    axes.set_xlabel("seconds", color=INK, fontsize=10, labelpad=3)
    axes.tick_params(labelsize=9, colors=INK)
    axes.grid(axis="y", color="#EEEEEE", linewidth=0.8)
    axes.set_axisbelow(True)
    _frame(axes)


def _count(spans: Sequence[ActivitySpan], times: Sequence[float]) -> list[float]:
    """How many of the spans hold just after each of the times."""
    change = dict.fromkeys(times, 0)
    for span in spans:
        change[span.start_s] += 1
        change[span.end_s] -= 1
    counts, level = [], 0
    for time_s in times:
        level += change[time_s]
        counts.append(float(level))
    return [*counts[:-1], counts[-2]]  # nothing ends at the right edge


def _frame(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#BBBBBB")


def _legend(story: Story) -> list[Any]:
    from matplotlib.lines import Line2D  # noqa: PLC0415
    from matplotlib.patches import Patch  # noqa: PLC0415

    handles: list[Any] = [
        Patch(facecolor=colour_of(story, trainer_id), label=name)
        for trainer_id, name in story.trainers.items()
    ]
    handles += [
        Patch(facecolor="#C9D7E3", label="starting (tint)"),
        Patch(facecolor=HELD_COLOUR, label="held, no worker"),
        Patch(
            facecolor=ORDINARY_COLOUR,
            edgecolor=ORDINARY_HATCH_COLOUR,
            hatch="////",
            linewidth=0,
            label="ordinary job",
        ),
        Patch(facecolor=FREE_COLOUR, edgecolor="#BBBBBB", label="idle"),
        Line2D([], [], color=INK, linewidth=1.3, label="nodes offered"),
        *(
            Line2D(
                [],
                [],
                linestyle="",
                marker="v",
                markersize=7,
                markerfacecolor=face,
                markeredgecolor=GIVE_BACK_COLOUR,
                label=label,
            )
            for face, label in (
                (GIVE_BACK_COLOUR, "given back before being asked"),
                ("white", "taken back"),
            )
        ),
    ]
    return handles
