"""Recorded polls: one JSON object a line, so that a recording that is cut off stays readable.

``record`` appends lines, ``trace`` and the command line read them. A line is some kilobytes: 400
idle nodes every 10 s make about 45 MB a day.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bftrainer.errors import ExitCode, UsageError
from bftrainer.simulate.traces.lines import read_lines
from lsf_adapters.csm.idle import Poll
from lsf_adapters.csm.jobstat import ListedJob

SCHEMA = "bftrainer/idle-poll/1"


def line_of(poll: Poll) -> str:
    """Return the line of a poll, with its end."""
    said: dict[str, Any] = {
        "schema": SCHEMA,
        "at_s": poll.at_s,
        "idle": {name: None if math.isinf(s) else s for name, s in poll.idle.items()},
        "waiting": [[job.job_id, job.n_nodes, job.for_s] for job in poll.waiting],
        "n_nodes": poll.n_nodes,
        "is_named": poll.is_named,
    }
    return json.dumps(said, separators=(",", ":"), allow_nan=False) + "\n"


def read_polls(path: Path) -> list[Poll]:
    """Read a recording, also a gzipped one; a last line that is cut off is left out.

    Raises:
        UsageError: BFT-1229, it is none.
        TraceError: BFT-4001 or -4002, it cannot be read.
    """
    return polls_of(path, list(read_lines(path)))


def polls_of(path: Path, lines: Sequence[tuple[int, str]]) -> list[Poll]:
    """Parse the numbered lines of a recording; ``path`` is for the message.

    Raises:
        UsageError: BFT-1229, it is none.
    """
    found: list[Poll] = []
    for k, (number, line) in enumerate(lines):
        try:
            poll = _poll(line)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as problem:
            if k + 1 == len(lines) and found:
                break  # the recorder was killed while it wrote
            raise bad_recording(path, f"line {number} is no poll ({problem})") from problem
        if found and poll.at_s <= found[-1].at_s:
            raise bad_recording(path, f"line {number} is not later than the one before")
        found.append(poll)
    return found


def _poll(line: str) -> Poll:
    said = json.loads(line)
    if said["schema"] != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA}")
    idle = {str(name): _length(s) for name, s in said["idle"].items()}
    at_s, n_nodes = float(said["at_s"]), said["n_nodes"]
    if not math.isfinite(at_s):
        raise ValueError("it has no time")
    return Poll(
        at_s=at_s,
        idle=idle,
        waiting=tuple(
            ListedJob(job_id=str(job_id), n_nodes=int(n), for_s=_length(for_s))
            for job_id, n, for_s in said["waiting"]
        ),
        n_nodes=None if n_nodes is None else int(n_nodes),
        is_named=bool(said["is_named"]),
    )


def _length(value: Any) -> float:
    if value is None:
        return math.inf
    length_s = float(value)
    if not length_s >= 0.0:
        raise ValueError(f"{value!r} is no length of time")
    return length_s


def bad_recording(path: Path, what: str) -> UsageError:
    """Return the error of a file that cannot become a trace."""
    return UsageError(
        "BFT-1229",
        f"{path.name}: {what}.",
        "Give a file that 'python -m lsf_adapters.csm record' wrote.",
        exit_code=ExitCode.VALIDATION_FAILED,
    )
