"""Replays as documents, tables and words: figures of merit, windows of time, captions.

The formulas are in docs/design/simulator.md.

``ReplayRun``s come in, plain data go out; ``bftrainer simulate`` writes them.

As in Fig. 10 of the BFTrainer paper each window has its own U: the samples processed in it,
divided by those that its mean number of idle nodes would have processed.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bftrainer.batch.traces.fragments import HOUR_S, Fragments, Times
from bftrainer.batch.traces.text import unreadable
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.simulator.metrics import WORDS, Metrics, static_outcome
from bftrainer.lab.simulator.session import Choices, ReplayRun, job_nodes


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
            f"Trace {name}: {len(trace.names):,} nodes, {trace.duration_s / HOUR_S:,.4g} h, "
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
        polls = "" if choices.poll_s is None else f", a poll each {choices.poll_s:g} s"
        return self.costs if choices.costs is None else f"{self.costs} ({choices.costs}{polls})"


def label_of(name: str) -> str:
    """Return a figure's name with its unit."""
    word = WORDS[name]
    return f"{word.label} ({word.unit})" if word.unit else word.label


def shown_value(metrics: Metrics, name: str) -> str:
    """Return a figure's number for readers; a dash if there is none."""
    value = getattr(metrics, name)
    return "-" if value is None else format(value, WORDS[name].form)


def document(run: ReplayRun, setup: ReportSetup, selection: Mapping[str, Any]) -> dict[str, Any]:
    """Return one replay as a JSON object; ``selection`` is the part of the trace."""
    choices = run.choices
    jobs = not load_policy(choices.policy).traits.rescales
    return {
        "policy": choices.policy,
        "trace": setup.trace,
        "workload": setup.workload,
        "costs": setup.costs,
        "costs_s": None if choices.costs is None else choices.costs.by_name(),
        "poll_interval_s": choices.poll_s,
        "seed": choices.seed,
        "selection": {k: v for k, v in selection.items() if v not in (None, (), False)},
        **dataclasses.asdict(run.metrics),
        "t_fwd_s": choices.t_fwd_s,
        "p_jmax": choices.p_jmax,
        "objective": choices.objective.value,
        "job_nodes": job_nodes(run.outcome.trace, choices) if jobs else None,
    }


def check_place(path: Path) -> None:
    """Check before a replay that the file can be written after it.

    Raises:
        TraceError: BFT-4002, there is no such directory.
    """
    if not path.parent.is_dir():
        raise unreadable(path, FileNotFoundError(2, "There is no such directory"))


def write_csv(path: Path, documents: Sequence[Mapping[str, Any]]) -> None:
    """Write one line per replay and one column per figure.

    Raises:
        TraceError: BFT-4002, no file can be written.
    """
    stream = io.StringIO(newline="")
    names = [name for name in documents[0] if name not in ("selection", "costs_s")]
    writer = csv.DictWriter(stream, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(documents)
    try:
        path.write_text(stream.getvalue(), encoding="utf-8")
    except OSError as problem:
        raise unreadable(path, problem) from problem


def comparison(runs: Sequence[ReplayRun]) -> list[tuple[str, ...]]:
    """Return one row per figure of merit, one column per replay."""
    return [(label_of(name), *[shown_value(run.metrics, name) for run in runs]) for name in WORDS]


WIDTHS_H = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 12.0, 24.0)  # widths that readers expect


def window_h(trace: Fragments, most: int) -> float:
    """Return the smallest usual width that gives at most so many windows."""
    hours = trace.duration_s / HOUR_S
    return next((width for width in WIDTHS_H if hours <= width * most), hours / most)


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
    found = np.full(len(processed), np.nan)
    for k, (n_eq, span_s) in enumerate(zip(offered.tolist(), width_s.tolist(), strict=True)):
        static = static_outcome(run.outcome, n_eq, span_s)
        if static > 0:
            found[k] = processed[k] / static
    return found


def _gained(run: ReplayRun, edges_s: Times, sums: list[float]) -> Times:
    """Return the growth of a sum in each window, linear between two notes."""
    at_s = [run.outcome.trace.span_s[0], *(note.at_s for note in run.outcome.notes)]
    return np.diff(np.interp(edges_s, at_s, [0.0, *sums]))
