"""Background workloads of ordinary jobs, read from a file.

The server submits the jobs at their times; the demo and the tests write workloads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bftrainer.model.errors import ExitCode, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One ordinary job of a workload; ``at_s`` counts from the start of the workload."""

    at_s: float
    n_nodes: int
    duration_s: float
    limit_s: float
    user: str = "alice"

    def __post_init__(self) -> None:
        """Refuse what can never run as described."""
        numbers = (self.at_s, self.duration_s, self.limit_s)
        if not all(math.isfinite(x) for x in numbers) or self.at_s < 0:
            raise ValueError("at_s, duration_s and limit_s must be finite, at_s not negative")
        if self.n_nodes < 1 or self.duration_s <= 0 or self.limit_s <= 0:
            raise ValueError("n_nodes, duration_s and limit_s must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWorkload:
    """Jobs in order of time; with ``repeat_s`` they repeat after that time."""

    items: tuple[WorkItem, ...]
    repeat_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a period that ends before its last job."""
        last_s = max((item.at_s for item in self.items), default=0.0)
        if self.repeat_s is not None and not max(1.0, last_s) <= self.repeat_s < math.inf:
            raise ValueError("repeat_s must be at least 1 and not before the last job")


def workload_from_json(data: object) -> JobWorkload:
    """Read ``[{...}, ...]`` or ``{"jobs": [...], "repeat_s": 60}``.

    Raises:
        ValueError: with a sentence that says what is wrong with which job.
    """
    document: Mapping[str, Any] = data if isinstance(data, dict) else {"jobs": data}
    unknown = sorted(set(document) - {"jobs", "repeat_s"})
    jobs = document.get("jobs")
    if unknown or not isinstance(jobs, list):
        raise ValueError('expected a list of jobs, or {"jobs": [...], "repeat_s": ...}')
    items = []
    for number, job in enumerate(jobs, start=1):
        try:
            items.append(_item(job))
        except (TypeError, ValueError) as problem:
            raise ValueError(f"job {number}: {problem}") from problem
    repeat_s = document.get("repeat_s")
    if repeat_s is not None and not _is_number(repeat_s):
        raise ValueError("repeat_s must be a number")
    return JobWorkload(items=tuple(sorted(items, key=lambda i: i.at_s)), repeat_s=repeat_s)


def _item(job: object) -> WorkItem:
    if not isinstance(job, dict):
        raise TypeError("expected an object")
    for name in ("at_s", "duration_s", "limit_s"):
        if not _is_number(job.get(name)):
            raise ValueError(f"{name} must be a number")
    if type(job.get("n_nodes")) is not int or not isinstance(job.get("user", ""), str):
        raise ValueError("n_nodes must be a whole number and user a text")
    unknown = sorted(set(job) - set(WorkItem.__slots__))
    if unknown:
        raise ValueError(f"unknown field {unknown[0]!r}")
    return WorkItem(**job)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def load_workload(path: Path) -> JobWorkload:
    """Read a workload file.

    Raises:
        UsageError: BFT-1257, it cannot be read or says something impossible.
    """
    try:
        return workload_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as problem:
        raise UsageError(
            "BFT-1257",
            f"The workload file {path} cannot be used: {problem}.",
            "Correct the file and start again.",
            exit_code=ExitCode.VALIDATION_FAILED,
        ) from problem


def workload_to_json(workload: JobWorkload) -> dict[str, Any]:
    """Write what ``workload_from_json`` reads."""
    jobs = [asdict(item) for item in workload.items]
    return {"jobs": jobs, "repeat_s": workload.repeat_s}
