"""Workloads as JSON: our own documents, and the paper's job tables.

Our documents have ``"schema": "bftrainer/workload/1"`` (``workload.schema.json`` in this folder),
the paper's have ``nodes``, ``curves`` and ``jobs``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bftrainer.batch.traces.text import TraceError, unreadable
from bftrainer.lab.workloads.submission import Submission, TrainerWorkload
from milp.plain import Form, codec, parse
from milp.problem import Curve

SCHEMA = "bftrainer/workload/1"
MAX_BYTES = 256 << 20
_CURVES = ("curve", "utility")
_OPTIONAL = ("gres", "user", "account", "utility")  # not written without a value
_OWN, _PUBLISHED = Form(), Form(ignores_unknown=True)


def read_workload(path: Path) -> TrainerWorkload:
    """Read either form; times of submission are relative to the first one.

    Raises:
        TraceError: BFT-4002 or BFT-4010, with the trainer and the field that is wrong.
    """
    try:
        return _read(path)
    except OSError as problem:
        raise unreadable(path, problem) from problem
    except (ValueError, TypeError, LookupError) as problem:
        raise TraceError(
            "BFT-4010",
            f"{path.name}: {problem}.",
            "Correct the file; see docs/reference/traces.md.",
        ) from problem


def _read(path: Path) -> TrainerWorkload:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES >> 20} MiB")
    document = parse(path.read_bytes())
    if not isinstance(document, dict):
        raise TypeError("it is no JSON object")
    if document.get("schema") == SCHEMA:
        rows = [_renamed(row, "values", "samples_per_s") for row in document["trainers"]]
        trainers = codec(_Own, _OWN).decode({"schema": SCHEMA, "trainers": rows}).trainers
    elif {"nodes", "curves", "jobs"} <= set(document):
        trainers = _published(codec(_Tables, _PUBLISHED).decode(document))
    else:
        raise ValueError(f"it has neither schema {SCHEMA!r} nor nodes, curves and jobs")
    first_s = min((one.submit_s for one in trainers), default=0.0)
    counted = (replace(one, submit_s=one.submit_s - first_s) for one in trainers)
    ordered = tuple(sorted(counted, key=lambda one: one.submit_s))
    return TrainerWorkload(name=str(document.get("name", path.stem))[:100], submissions=ordered)


def write_workload(path: Path, workload: TrainerWorkload) -> None:
    """Write our form.

    Raises:
        TraceError: BFT-4002, the file cannot be written.
    """
    given = _Own(schema=SCHEMA, name=workload.name, trainers=workload.submissions)
    document = codec(_Own, _OWN).encode(given)
    rows = [_renamed(row, "samples_per_s", "values") for row in document["trainers"]]
    document["trainers"] = [
        {name: value for name, value in row.items() if value or name not in _OPTIONAL}
        for row in rows
    ]
    try:
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _renamed(row: Any, old: str, new: str) -> Any:
    """Return a trainer whose curves have another name for their values."""
    if not isinstance(row, dict):
        return row
    curves = {name: row[name] for name in _CURVES if isinstance(row.get(name), dict)}
    return row | {
        name: {new if key == old else key: value for key, value in curve.items()}
        for name, curve in curves.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Own:
    """Our form."""

    schema: str
    name: str = ""
    trainers: tuple[Submission, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values:
    throughput: tuple[float, ...]  # by size; these curves may have a size 0, ours do not
    objective: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    name: str
    submit: float
    n_min: int
    n_max: int
    samples: float
    t_up: float
    t_down: float
    curve: int  # its number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """The paper's form."""

    nodes: tuple[int, ...]
    curves: tuple[_Values, ...]
    jobs: tuple[_Job, ...]


def _published(tables: _Tables) -> tuple[Submission, ...]:
    first = 1 if tables.nodes[:1] == (0,) else 0
    sizes = tables.nodes[first:]
    found = []
    for i, job in enumerate(tables.jobs):
        if not 0 <= job.curve < len(tables.curves):
            raise ValueError(f"jobs[{i}]: there is no curve {job.curve}")
        values = tables.curves[job.curve]
        rates, objective = values.throughput[first:], values.objective[first:]
        utility = None if objective == rates else Curve(sizes=sizes, samples_per_s=objective)
        found.append(
            Submission(
                submit_s=job.submit,
                name=job.name,
                network=job.name.partition("-")[2],
                n_min=job.n_min,
                n_max=job.n_max,
                samples=job.samples,
                rescale_up_s=job.t_up,
                rescale_down_s=job.t_down,
                curve=Curve(sizes=sizes, samples_per_s=rates),
                utility=utility,
            )
        )
    return tuple(found)
