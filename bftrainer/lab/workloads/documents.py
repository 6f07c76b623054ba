"""Workloads as JSON: our own documents, and the paper's job tables.

Our documents have ``"schema": "bftrainer/workload/1"`` (``workload.schema.json`` in this folder),
the paper's have ``nodes``, ``curves`` and ``jobs``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bftrainer.batch.traces.text import TraceError, unreadable
from bftrainer.lab.workloads.submission import Submission, TrainerWorkload
from milp.problem import Curve

SCHEMA = "bftrainer/workload/1"
MAX_BYTES = 256 << 20
_NUMBERS = ("submit_s", "samples", "rescale_up_s", "rescale_down_s")
_TEXTS = ("network", "gres", "user", "account")
_KNOWN = frozenset({*_NUMBERS, *_TEXTS, "name", "n_min", "n_max", "curve", "utility", "weight"})


def read_workload(path: Path) -> TrainerWorkload:
    """Read either form; times of submission are relative to the first one.

    Raises:
        TraceError: BFT-4002 or BFT-4010, with the trainer and the field that is wrong.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise _wrong(path, f"it is larger than {MAX_BYTES >> 20} MiB")
        document = json.loads(path.read_bytes())
    except OSError as problem:
        raise unreadable(path, problem) from problem
    except (ValueError, RecursionError) as problem:
        raise _wrong(path, f"it is no JSON ({str(problem)[:100]})") from problem
    if not isinstance(document, dict):
        raise _wrong(path, "it is no JSON object")
    if document.get("schema") == SCHEMA:
        submissions = _own(path, document)
    elif {"nodes", "curves", "jobs"} <= set(document):
        submissions = _replayer(path, document)
    else:
        raise _wrong(path, f"it has neither schema {SCHEMA!r} nor nodes, curves and jobs")
    first_s = min((submission["submit_s"] for submission in submissions), default=0.0)
    made = []
    for i, fields in enumerate(submissions):
        fields["submit_s"] -= first_s
        try:
            made.append(Submission(**fields))
        except (ValueError, TypeError) as problem:
            raise _wrong(path, f"trainer {i}: {problem}") from problem
    try:
        ordered = tuple(sorted(made, key=lambda submission: submission.submit_s))
        return TrainerWorkload(name=str(document.get("name", path.stem))[:100], submissions=ordered)
    except ValueError as problem:
        raise _wrong(path, str(problem)) from problem


def write_workload(path: Path, workload: TrainerWorkload) -> None:
    """Write our form.

    Raises:
        TraceError: BFT-4002, the file cannot be written.
    """
    document = {
        "schema": SCHEMA,
        "name": workload.name,
        "trainers": [_as_json(submission) for submission in workload],
    }
    try:
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _as_json(submission: Submission) -> dict[str, Any]:
    document: dict[str, Any] = {
        "submit_s": submission.submit_s,
        "name": submission.name,
        "network": submission.network,
        "n_min": submission.n_min,
        "n_max": submission.n_max,
        "samples": submission.samples,
        "curve": _curve_as_json(submission.curve),
        "rescale_up_s": submission.rescale_up_s,
        "rescale_down_s": submission.rescale_down_s,
        "weight": submission.weight,
    }
    if submission.utility is not None:
        document["utility"] = _curve_as_json(submission.utility)
    for name in ("gres", "user", "account"):
        if text := getattr(submission, name):
            document[name] = text
    return document


def _curve_as_json(curve: Curve) -> dict[str, Any]:
    return {"sizes": list(curve.sizes), "values": list(curve.samples_per_s)}


def _own(path: Path, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = _list(path, document.get("trainers"), "trainers")
    found = []
    for i, row in enumerate(rows):
        where = f"trainer {i}"
        if not isinstance(row, dict):
            raise _wrong(path, f"{where} is not an object")
        unknown = sorted(str(key) for key in set(row) - _KNOWN)
        if unknown:
            raise _wrong(path, f"{where} has unknown fields: {', '.join(unknown)[:100]}")
        fields: dict[str, Any] = {key: _number(path, row, key, where) for key in _NUMBERS}
        fields |= {key: _whole(path, row, key, where) for key in ("n_min", "n_max")}
        fields["name"] = _text(path, row, "name", where)
        fields["curve"] = _curve(path, row.get("curve"), f"{where}, curve")
        if "weight" in row:
            fields["weight"] = _number(path, row, "weight", where)
        fields |= {key: _text(path, row, key, where) for key in _TEXTS if key in row}
        if row.get("utility") is not None:
            fields["utility"] = _curve(path, row["utility"], f"{where}, utility")
        found.append(fields)
    return found


def _curve(path: Path, value: object, where: str) -> Curve:
    if not isinstance(value, dict):
        raise _wrong(path, f"{where} is not an object with sizes and values")
    sizes = _list(path, value.get("sizes"), f"{where}: sizes")
    values = _list(path, value.get("values"), f"{where}: values")
    return Curve(
        sizes=tuple(_whole(path, {"size": size}, "size", where) for size in sizes),
        samples_per_s=tuple(_number(path, {"value": v}, "value", where) for v in values),
    )


def _replayer(path: Path, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read trainers with curves by number; these curves have a size 0, ours do not."""
    nodes = [
        _whole(path, {"size": n}, "size", "nodes") for n in _list(path, document["nodes"], "nodes")
    ]
    first = 1 if nodes[:1] == [0] else 0
    curves = []
    for i, row in enumerate(_list(path, document["curves"], "curves")):
        if not isinstance(row, dict):
            raise _wrong(path, f"curve {i} is not an object")
        rates = _values(path, row.get("throughput"), first, f"curve {i}, throughput")
        objective = _values(path, row.get("objective"), first, f"curve {i}, objective")
        sizes = tuple(nodes[first:])
        utility = None if objective == rates else Curve(sizes=sizes, samples_per_s=objective)
        curves.append((Curve(sizes=sizes, samples_per_s=rates), utility))
    found = []
    for i, row in enumerate(_list(path, document["jobs"], "jobs")):
        where = f"trainer {i}"
        if not isinstance(row, dict):
            raise _wrong(path, f"{where} is not an object")
        number = _whole(path, row, "curve", where)
        if not 0 <= number < len(curves):
            raise _wrong(path, f"{where}: there is no curve {number}")
        name = _text(path, row, "name", where)
        found.append(
            {
                "submit_s": _number(path, row, "submit", where),
                "name": name,
                "network": name.partition("-")[2],
                "n_min": _whole(path, row, "n_min", where),
                "n_max": _whole(path, row, "n_max", where),
                "samples": _number(path, row, "samples", where),
                "rescale_up_s": _number(path, row, "t_up", where),
                "rescale_down_s": _number(path, row, "t_down", where),
                "curve": curves[number][0],
                "utility": curves[number][1],
            }
        )
    return found


def _values(path: Path, value: object, first: int, where: str) -> tuple[float, ...]:
    numbers = _list(path, value, where)[first:]
    return tuple(_number(path, {"value": number}, "value", where) for number in numbers)


def _list(path: Path, value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(path, f"{where} is not a list")
    return value


def _number(path: Path, row: Mapping[str, Any], key: str, where: str) -> float:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise _wrong(path, f"{where}: {key} is not a number")
    return float(value)


def _whole(path: Path, row: Mapping[str, Any], key: str, where: str) -> int:
    value = _number(path, row, key, where)
    if value != int(value):
        raise _wrong(path, f"{where}: {key} is not a whole number")
    return int(value)


def _text(path: Path, row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not (key in _TEXTS or value) or len(value) > 200:
        raise _wrong(path, f"{where}: {key} is not a text of at most 200 characters")
    return value


def _wrong(path: Path, what: str) -> TraceError:
    next_step = "Correct the file; see docs/reference/traces.md."
    return TraceError("BFT-4010", f"{path.name}: {what}.", next_step)
