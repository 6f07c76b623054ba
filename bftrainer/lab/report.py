"""Reports of replays: documents, tables, CSV, and one page with figures, as HTML or as a picture.

``ReplayRun``s come in; ``bftrainer simulate`` writes what goes out. The formulas are in
docs/design/simulator.md. As in Fig. 10 of the BFTrainer paper each window has its own U: the
samples processed in it, divided by those that its mean number of idle nodes would have processed.
"""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import os
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer import __version__
from bftrainer.batch.traces import gpu_pools
from bftrainer.batch.traces.fragments import HOUR_S, Fragments, Times
from bftrainer.batch.traces.gpu_pools import IdleGpus, idle_gpus
from bftrainer.batch.traces.text import unreadable
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.html import (
    OTHERWISE,
    picture,
    saved,
    write_file,
    write_page,
)
from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.lab.simulator.metrics import (
    MEANING_OF_U,
    WHICH_FIGURE,
    WORDS,
    Metrics,
    completion_times_s,
    static_outcome,
)
from bftrainer.lab.simulator.session import Choices, ReplayRun, job_nodes
from bftrainer.model.columns import TextTable, level_line
from bftrainer.model.errors import UsageError
from bftrainer.model.quantities import quantity, time_span
from bftrainer.study.plots import matplotlib, new_canvas

NO_COLUMNS = frozenset({"selection", "costs_s", "gpus"})  # of a table: they are no single figure
WIDTHS_H = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 12.0, 24.0)  # widths that readers expect
# M. Okabe, K. Ito: colours that colour-blind readers can distinguish.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
POOL_COLOUR = "#BBBBBB"
PARTS = (
    ("utilization", "processed (U)", "#009E73"),
    ("cost_preemption", "lost to preemptions", "#D55E00"),
    ("cost_rescale", "lost to rescales", "#E69F00"),
    ("cost_unused", "unused", "#BBBBBB"),
)
LINE_WIDTH = 40  # characters of a line of bars
WINDOWS, FINE_WINDOWS = 30, 200  # a week: 28 of six hours as in the paper's Fig. 10, 168 of one


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSetup:
    """The source of the runs."""

    trace: str  # as the user named it
    workload: str
    costs: str
    command: str  # repeats these runs

    def sentence(self, runs: Sequence[ReplayRun]) -> str:
        """Return trace, workload and choices in words."""
        run = runs[0]
        outcome, choices = run.outcome, run.choices
        name, trace = Path(self.trace).name, outcome.trace
        text = (
            f"Trace {name}: {len(trace.names):,} nodes, {time_span(trace.duration_s, 4)}, "
            f"{run.metrics.events:,} events, N_eq {run.metrics.n_eq:,.1f}. "
            f"Workload {self.workload}: {len(outcome.trainers):,} trainers, P_jmax "
            f"{choices.p_jmax}, T_fwd {choices.t_fwd_s:g} s, "
            f"objective {choices.objective.value}, "
            f"costs {self._costs(choices)}, seed {choices.seed}."
        )
        jobs = [r for r in runs if not load_policy(r.choices.policy).traits.rescales]
        if jobs:
            nodes = job_nodes(trace, jobs[0].choices)
            text += f" A job of {jobs[0].choices.policy} asks for {nodes} node{'s' * (nodes > 1)}."
        return text

    def _costs(self, choices: Choices) -> str:
        if choices.costs is None:
            return self.costs
        polls = ""
        if choices.poll_s is not None:
            polls = f", a poll each {choices.poll_s:g} s"
        return f"{self.costs} ({choices.costs}{polls})"


def answer(runs: Sequence[ReplayRun]) -> str:
    """Return what trainers made of the idle nodes, in one sentence."""
    first, *rivals = runs
    metrics = first.metrics
    trained = metrics.node_share_training * metrics.resource_integral_node_h
    beside = ""
    if rivals:
        works = [
            f"{run.choices.policy}: {quantity(run.metrics.reference_node_h)}" for run in rivals
        ]
        beside = f" ({', '.join(works)})"
    return (
        f"With {first.choices.policy}, trainers used {quantity(trained)} of the "
        f"{quantity(metrics.resource_integral_node_h)} idle node-hours; their work would take one "
        f"node {quantity(metrics.reference_node_h)} hours{beside}."
    )


def cautions(runs: Sequence[ReplayRun]) -> tuple[str, ...]:
    """Return what to know before one believes a difference between the replays."""
    if len(runs) < 2:
        return ()
    return (
        "Each policy was replayed once: what of a difference is chance, 'bftrainer compare' tells.",
    )


def label_of(name: str) -> str:
    """Return a figure's name with its unit."""
    return WORDS[name].title


def shown_value(metrics: Metrics, name: str) -> str:
    """Return a figure's number for readers; a dash if there is none."""
    return WORDS[name].shown(getattr(metrics, name))


def document(run: ReplayRun, setup: ReportSetup, selection: Mapping[str, Any]) -> dict[str, Any]:
    """Return one replay as a JSON object; ``selection`` is the part of the trace."""
    choices = run.choices
    jobs = not load_policy(choices.policy).traits.rescales
    gpus = idle_gpus(run.outcome.trace)
    return {
        "policy": choices.policy,
        "trace": setup.trace,
        "workload": setup.workload,
        "costs": setup.costs,
        "costs_s": None if choices.costs is None else choices.costs.by_name(),
        "poll_interval_s": choices.poll_s,
        "seed": choices.seed,
        "selection": {k: _plain(v) for k, v in selection.items() if v not in (None, (), False)},
        **dataclasses.asdict(run.metrics),
        "t_fwd_s": choices.t_fwd_s,
        "p_jmax": choices.p_jmax,
        "objective": choices.objective.value,
        "job_nodes": job_nodes(run.outcome.trace, choices) if jobs else None,
        "gpus": None if gpus is None else dataclasses.asdict(gpus),
    }


def _plain(value: Any) -> Any:
    """Return what JSON can hold: files by their names."""
    return str(value) if isinstance(value, Path) else value


def check_place(path: Path) -> None:
    """Check before a replay that the file can be written after it; leave all as it was.

    Raises:
        TraceError: BFT-4002, no file can be written there.
    """
    target = Path(os.path.realpath(path))  # a link may lead to a file that is not there yet
    if not target.parent.is_dir():
        raise unreadable(path, FileNotFoundError(2, "There is no such directory"))
    try:
        _probe(target)
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _probe(target: Path) -> None:
    """Make and remove the file, or ask whether the one that is there may be written."""
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    if target.exists():
        if not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "Permission denied")
        return
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    target.unlink()


def write_csv(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write one line per replay and one column per figure.

    Raises:
        TraceError: BFT-4002, no file can be written.
    """
    stream = io.StringIO(newline="")
    names = [name for name in documents[0] if name not in NO_COLUMNS]
    writer = csv.DictWriter(stream, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(documents)
    try:
        path.write_text(stream.getvalue(), encoding="utf-8")
    except OSError as problem:
        raise unreadable(path, problem) from problem


def window_h(trace: Fragments, max_windows: int) -> float:
    """Return the smallest usual width that gives at most so many windows."""
    hours = trace.duration_s / HOUR_S
    return next((width for width in WIDTHS_H if hours <= width * max_windows), hours / max_windows)


def edges_of(trace: Fragments, hours: float) -> Times:
    """Return the edges of windows of so many hours; the last one may be shorter."""
    begin_s, end_s = trace.span_s
    edges: Times = np.append(np.arange(begin_s, end_s - 1e-6, hours * HOUR_S), end_s)
    return edges


def hours_of(edges_s: Times) -> Times:
    """Return the edges in hours from the start."""
    hours: Times = (edges_s - edges_s[0]) / HOUR_S
    return hours


def nodes_offered(trace: Fragments, edges_s: Times) -> Times:
    """Return the mean size of the pool in each window."""
    changes = trace.pool_changes()
    at_s = np.append(changes.at_s, trace.span_s[1])
    so_far = np.concatenate(([0.0], np.cumsum(changes.pool_sizes() * np.diff(at_s))))
    offered: Times = np.diff(np.interp(edges_s, at_s, so_far)) / np.diff(edges_s)
    return offered


def nodes_training(run: ReplayRun, edges_s: Times) -> Times:
    """Return the mean number of training nodes in each window."""
    return _gained(run, edges_s, [n.node_s_training for n in run.outcome.notes]) / np.diff(edges_s)


def utilization(run: ReplayRun, edges_s: Times) -> Times:
    """Return U of each window; NaN where no node was idle."""
    processed = _gained(run, edges_s, [n.processed for n in run.outcome.notes])
    offered, width_s = nodes_offered(run.outcome.trace, edges_s), np.diff(edges_s)
    shares = np.full(len(processed), np.nan)
    for k, (n_eq, span_s) in enumerate(zip(offered.tolist(), width_s.tolist(), strict=True)):
        static = static_outcome(run.outcome, n_eq, span_s)
        if static > 0:
            shares[k] = processed[k] / static
    return shares


def _gained(run: ReplayRun, edges_s: Times, sums: list[float]) -> Times:
    """Return the growth of a sum in each window, linear between two notes."""
    at_s = [run.outcome.trace.span_s[0], *(note.at_s for note in run.outcome.notes)]
    return np.diff(np.interp(edges_s, at_s, [0.0, *sums]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of a report."""

    key: str  # of its anchor
    title: str
    caption: Callable[[Sequence[ReplayRun]], str]
    draw: Callable[[Any, Sequence[ReplayRun]], None]


def _utilization(axes: Any, runs: Sequence[ReplayRun]) -> None:
    names = _policies(runs)
    values = [100 * run.metrics.utilization for run in runs]
    bars = axes.bar(names, values, color=list(map(_colour, range(len(runs)))), width=0.6)
    axes.bar_label(bars, labels=[f"{value:.1f}" for value in values], padding=2)
    axes.set(ylabel="U = A_e / A_s (%)", xlabel="policy", ylim=(0, max(100, *values) * 1.08))
    axes.grid(axis="y", alpha=0.3)


def _split(axes: Any, runs: Sequence[ReplayRun]) -> None:
    names = _policies(runs)
    above, below = np.zeros(len(runs)), np.zeros(len(runs))
    for name, label, colour in PARTS:
        values = np.array([100 * getattr(run.metrics, name) for run in runs])
        # Below 0 where a policy did better than the static share.
        axes.bar(names, values, bottom=np.where(values < 0, below, above), color=colour,
                 label=label, width=0.6)  # fmt: skip
        above += np.maximum(values, 0)
        below += np.minimum(values, 0)
    axes.set(ylabel="share of A_s (%)", xlabel="policy", ylim=(1.08 * below.min(), None))
    _finish(axes, axis="y")


def _nodes(axes: Any, runs: Sequence[ReplayRun]) -> None:
    trace = runs[0].outcome.trace
    edges = edges_of(trace, window_h(trace, FINE_WINDOWS))
    hours, offered = hours_of(edges), nodes_offered(trace, edges)
    axes.stairs(offered, hours, fill=True, color=POOL_COLOUR, label="idle (pool)")
    for i, run in enumerate(runs):
        axes.stairs(nodes_training(run, edges), hours, color=_colour(i), linewidth=1.0,
                    label=f"training, {run.choices.policy}")  # fmt: skip
    axes.set(xlabel="time from the begin (h)", ylabel="nodes", xlim=(0, hours[-1]),
             ylim=(0, None))  # fmt: skip
    _finish(axes)


def _over_time(axes: Any, runs: Sequence[ReplayRun]) -> None:
    trace = runs[0].outcome.trace
    edges = edges_of(trace, window_h(trace, WINDOWS))
    hours = hours_of(edges)
    middle = (hours[1:] + hours[:-1]) / 2
    for i, run in enumerate(runs):
        axes.plot(middle, 100 * utilization(run, edges), color=_colour(i), marker="o",
                  markersize=3, linewidth=1.2, label=run.choices.policy)  # fmt: skip
    axes.set(xlabel="time from the begin (h)", ylabel="U in the window (%)", xlim=(0, hours[-1]),
             ylim=(0, None))  # fmt: skip
    _finish(axes)


def _completion(axes: Any, runs: Sequence[ReplayRun]) -> None:
    last_h = 1e-3
    if not any(run.metrics.completed for run in runs):
        axes.text(0.5, 0.5, "No trainer was complete before the end.", ha="center", va="center",
                  transform=axes.transAxes)  # fmt: skip
    for i, run in enumerate(runs):
        hours = np.sort(completion_times_s(run.outcome)) / HOUR_S
        share = 100 * np.arange(len(hours) + 1) / max(1, len(run.outcome.trainers))
        last_h = max([last_h, *hours.tolist()])
        axes.step(np.concatenate(([0.0], hours)), share, where="post", color=_colour(i),
                  linewidth=1.2, label=run.choices.policy)  # fmt: skip
    axes.set(xlabel="completion time, submission to end (h)", xlim=(0, last_h * 1.02),
             ylabel="of the trainers submitted (%)", ylim=(0, None))  # fmt: skip
    _finish(axes)


def _policies(runs: Sequence[ReplayRun]) -> list[str]:
    return [run.choices.policy for run in runs]


def _finish(axes: Any, axis: str = "both") -> None:
    """Draw a grid, and the legend below the axes, where it hides nothing."""
    axes.grid(axis=axis, alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize=8, frameon=False)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _window(runs: Sequence[ReplayRun], max_windows: int) -> str:
    return f"{window_h(runs[0].outcome.trace, max_windows):g} h"


FIGURES = (
    Figure(
        key="nodes",
        title="Nodes over time",
        draw=_nodes,
        caption=lambda runs: (
            f"Idle nodes and those on which a trainer trains, means over "
            f"{_window(runs, FINE_WINDOWS)}."
        ),
    ),
    Figure(
        key="utilization",
        title="Resource utilization efficiency",
        draw=_utilization,
        caption=lambda _: (
            f"{MEANING_OF_U}. In the paper's signs it is A_e / A_s; A_s shares N_eq nodes equally "
            "among P_jmax trainers, at the rates of the trainers that ran."
        ),
    ),
    Figure(
        key="cost-split",
        title="Where the rest goes",
        draw=_split,
        caption=lambda _: (
            "A_s split into what was processed, what preemptions and what rescales cost, and "
            "the rest: nodes without a trainer, sizes other than the static share."
        ),
    ),
    Figure(
        key="utilization-over-time",
        title="Efficiency over time",
        draw=_over_time,
        caption=lambda runs: (
            f"U of each {_window(runs, WINDOWS)}: what was processed in it, over what as many "
            "nodes as were idle in it on average would have processed."
        ),
    ),
    Figure(
        key="completion-times",
        title="Completion times",
        draw=_completion,
        caption=lambda runs: (
            "Share of the submitted trainers that were complete within a time of their "
            "submission; complete at the end: "
            + ", ".join(f"{run.choices.policy} {run.metrics.completed:,}" for run in runs)
            + f" of {runs[0].metrics.submitted:,}."
        ),
    ),
)


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
    pictures = []
    for number, figure in enumerate(FIGURES, start=1):
        canvas = new_canvas((9.0, 3.6), OTHERWISE)
        figure.draw(canvas.add_subplot(), runs)
        pictures.append(
            Picture(
                drawing=picture(canvas, figure.title, figure.key),
                title=f"Figure {number}. {figure.title}",
                caption=figure.caption(runs),
                key=figure.key,
            )
        )
        progress(number / len(FIGURES))
    write_page(path, report_of(runs, setup, tuple(pictures)))


def report_of(
    runs: Sequence[ReplayRun], setup: ReportSetup, pictures: tuple[Picture, ...] = ()
) -> ReportPage:
    """Return the report of some replays, as a page and a terminal show it."""
    names = _policies(runs)
    rows = []
    for name, word in WORDS.items():
        values = [shown_value(run.metrics, name) for run in runs]
        rows.append((label_of(name), *values, word.meaning))
    table = TextTable(headers=("", *map(">{}".format, names), "MEANING"), rows=tuple(rows))
    return ReportPage(
        title=f"Replay of idle nodes: {', '.join(names)}",
        answers=(answer(runs),),
        more=(*cautions(runs), setup.sentence(runs)),
        sections=(
            Section(pictures=pictures, drawn=nodes_drawn(runs)),
            Section(
                title="All figures",
                items=(WHICH_FIGURE,) if len(runs) > 1 else (),
                tables=(table,),
            ),
            *gpu_sections(idle_gpus(runs[0].outcome.trace)),
        ),
        command=setup.command,
    )


def gpu_sections(gpus: IdleGpus | None) -> tuple[Section, ...]:
    """Return a section about idle GPUs; none where the GPUs of the nodes are not known."""
    if gpus is None:
        return ()
    table = TextTable(headers=gpu_pools.HEADERS, rows=tuple(gpu_pools.gpu_rows(gpus)))
    text = tuple(gpu_pools.gpu_sentences(gpus))
    tables = (table,) if gpus.pools else ()
    return (Section(title=gpu_pools.TITLE, text=text, tables=tables),)


def nodes_drawn(runs: Sequence[ReplayRun]) -> tuple[str, ...]:
    """Return how many nodes were idle and trained over time, in a line of bars each."""
    trace = runs[0].outcome.trace
    begin_s, end_s = trace.span_s
    edges_s: Times = np.linspace(begin_s, end_s, LINE_WIDTH + 1)
    offered = nodes_offered(trace, edges_s)
    highest = float(offered.max())
    if not highest:
        return ()
    rows = {"idle nodes": offered}
    for run in runs:
        rows[f"training, {run.choices.policy}"] = nodes_training(run, edges_s)
    width = max(map(len, rows))
    span = time_span(trace.duration_s, 4)
    lines = [f"Nodes over {span}; the highest bar is {quantity(highest)} nodes."]
    for name, nodes in rows.items():
        lines.append(f"{name:<{width}} {level_line((nodes / highest).tolist())}")
    return tuple(lines)


def _as_png(
    runs: Sequence[ReplayRun], setup: ReportSetup, progress: Callable[[float], None]
) -> bytes:
    canvas = new_canvas((13.0, 15.5), OTHERWISE)
    grid = canvas.subplots(3, 2).flat
    words = [answer(runs), *cautions(runs), setup.sentence(runs)]
    words.append(f"Made by bftrainer {__version__} with: {setup.command}")
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
