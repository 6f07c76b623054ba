"""Replays as documents: JSON for programs, CSV for spreadsheets, rows for a terminal.

``ReplayRun``s come in, plain data go out; ``bftrainer simulate`` writes them.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.batch.traces.errors import unreadable
from bftrainer.decide.policies.base import load_policy
from bftrainer.lab.report.setup import Setup
from bftrainer.lab.report.words import WORDS, label_of, shown_value
from bftrainer.lab.simulator.session import ReplayRun, job_nodes


def document(run: ReplayRun, setup: Setup, selection: Mapping[str, Any]) -> dict[str, Any]:
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
