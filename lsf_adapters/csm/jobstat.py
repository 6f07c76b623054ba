"""``jobstat``: OLCF's list of running, eligible and blocked jobs, and the nodes in use. Pure.

Source: outputs in OLCF's Summit user guide ("Monitoring Jobs") and in Balsam's tests. The last
columns are users' words or reasons, so only the first five are read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bftrainer.hostlist import ParseError

_HEAD = re.compile(
    r"-{3,} *(Running|Eligible|Blocked) Jobs: *(\d{1,9})"
    r"(?: *\((\d{1,9}) of (\d{1,9}) nodes, *[\d.]+%\))? *-{3,}"
)
_COLUMNS = ["JobId", "Username", "Project", "Nodes"]
_JOB_ID = re.compile(r"\d{1,10}(?:\[\d{1,10}\])?")
_UNIT_S = (1.0, 60.0, 3600.0, 86400.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedJob:
    """A line of jobstat."""

    job_id: str
    n_nodes: int
    for_s: float  # what remains of a running job, the limit of another


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStat:
    """One output."""

    nodes_used: int | None  # None: not said
    nodes: int | None  # available ones, used or not
    running: tuple[ListedJob, ...]
    eligible: tuple[ListedJob, ...]
    blocked: tuple[ListedJob, ...]

    @property
    def n_free(self) -> int | None:
        """Nodes that no job uses; None: not said."""
        if self.nodes is None or self.nodes_used is None:
            return None
        return max(0, self.nodes - self.nodes_used)


def jobstat(text: str) -> JobStat:
    """Parse the output.

    Raises:
        ParseError: it is not jobstat's, or cut off.
    """
    if not text.endswith("\n"):
        raise ParseError(f"jobstat printed nothing, or was cut off: {text[-60:]!r}")
    found: dict[str, list[ListedJob]] = {}
    counts: dict[str, int] = {}
    used = nodes = None
    section = ""
    for line in (one.strip() for one in text.split("\n")):
        if head := _HEAD.fullmatch(line):
            section = head[1]
            counts[section], found[section] = int(head[2]), []
            if head[3]:
                used, nodes = int(head[3]), int(head[4])
        elif section and line and line.split()[:4] != _COLUMNS:
            found[section].append(_job(line))
    for name, count in counts.items():
        if len(found[name]) != count:
            raise ParseError(f"{len(found[name])} of {count} {name.lower()} jobs are listed")
    if "Running" not in found:
        raise ParseError(f"jobstat has no section of running jobs: {text[:60]!r}")
    return JobStat(
        nodes_used=used,
        nodes=nodes,
        running=tuple(found["Running"]),
        eligible=tuple(found.get("Eligible", ())),
        blocked=tuple(found.get("Blocked", ())),
    )


def _job(line: str) -> ListedJob:
    words = line.split()
    if len(words) < 5 or not _JOB_ID.fullmatch(words[0]):
        raise ParseError(f"not a job: {line[:60]!r}")
    n_nodes = 0 if words[3] == "-" else _count(words[3], line)
    return ListedJob(job_id=words[0], n_nodes=n_nodes, for_s=_clock_s(words[4], line))


def _clock_s(text: str, line: str) -> float:
    """Return the seconds of ``[[days:]hours:]minutes:seconds``."""
    parts = text.split(":")
    if not 2 <= len(parts) <= len(_UNIT_S):
        raise ParseError(f"not a length of time in {line[:60]!r}")
    return sum(_count(part, line) * unit for part, unit in zip(parts[::-1], _UNIT_S, strict=False))


def _count(text: str, line: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ParseError(f"not a number in {line[:60]!r}")
    return int(text)
