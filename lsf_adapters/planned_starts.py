"""The starts that LSF plans: reserved slots and windows of ``bslots``. Pure.

Where no job waits for slots, bslots prints a sentence. Sources: bslots(1) of LSF 10.1; an output on
Durham's COSMA page on backfill.

LSF plans only jobs of queues with SLOT_RESERVE: it reserves free slots for a blocked job and
estimates its start from the run limits of running jobs. Here reserved hosts are completed by those
that come free first, and an estimate that LSF does not print is the last of their ends. Sources:
bjobs(1), bslots(1), "Reserve resources" and "Planned scheduling" of LSF 10.1; the plan file has one
public source and was not tried.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bftrainer.model.cluster import Job, JobState
from bftrainer.model.hostlist import ParseError

_PART = re.compile(r"(\d{1,6}) (day|hour|minute|second)s?\b")
_UNIT_S = {"day": 86400.0, "hour": 3600.0, "minute": 60.0, "second": 1.0}
_HOST = re.compile(r"(\d{1,6})\*([A-Za-z0-9][A-Za-z0-9._-]{0,254})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Hosts of which slots are free for at least so long."""

    for_s: float  # inf: without limit
    hosts: tuple[str, ...]


def windows(text: str) -> tuple[Window, ...]:
    """Parse blocks of SLOTS, RUNTIME and HOSTS; () where there is no window.

    Host names may go on in further lines.

    Raises:
        ParseError: it is not what ``bslots -l`` prints, or cut off.
    """
    if "No backfill window" in text:
        return ()
    if not text.endswith("\n"):
        raise ParseError(f"bslots printed nothing, or was cut off: {text[-60:]!r}")
    blocks: list[dict[str, str]] = []
    key = ""
    for line in filter(None, map(str.strip, text.split("\n"))):
        word, colon, rest = line.partition(":")
        if colon and word in {"SLOTS", "RUNTIME", "HOSTS"}:
            key = word
            if key == "SLOTS":
                blocks.append({})
            if not blocks or key in blocks[-1]:
                raise ParseError(f"{key} twice, or before SLOTS: {line[:60]!r}")
            blocks[-1][key] = rest.strip()
        elif key == "HOSTS":
            blocks[-1]["HOSTS"] += f" {line}"
        elif blocks:
            raise ParseError(f"not a line of bslots: {line[:60]!r}")
        # Else it stands before the first window: "LSF is down. Please wait ...".
    if not blocks:
        raise ParseError(f"no backfill windows: {' '.join(text.split())[:60]!r}")
    return tuple(map(_block, blocks))


def _block(block: dict[str, str]) -> Window:
    words = block.get("HOSTS", "").split()
    found = [_HOST.fullmatch(word) for word in words]
    hosts = tuple(one[2] for one in found if one)
    slots = block["SLOTS"]
    if not slots.isdecimal() or not hosts or len(hosts) != len(words):
        raise ParseError(f"not a backfill window: {str(block)[:120]}")
    if sum(int(one[1]) for one in found if one) != int(slots):
        raise ParseError(f"{slots} slots, but other hosts: the output is cut off")
    return Window(for_s=_seconds(block.get("RUNTIME", "")), hosts=hosts)


def _seconds(text: str) -> float:
    if text.upper() == "UNLIMITED":
        return math.inf
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise ParseError(f"not a length of time: {text[:40]!r}")
    return sum(int(n) * _UNIT_S[unit] for n, unit in parts)


PLAN_FILE = "lsb.allocation.plan.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStart:
    """A start that LSF has planned."""

    start_s: float | None
    nodes: tuple[str, ...]


def with_plans(
    jobs: Sequence[Job], known: Mapping[str, PlannedStart], reserved: Sequence[str], due_s: float
) -> tuple[Job, ...]:
    """Return the jobs with starts and nodes as far as LSF has planned them.

    Args:
        jobs: pending ones carry what ``bjobs`` said of their plan.
        known: of the plan file, by job id; it is more exact.
        reserved: hosts on which slots are reserved for some job.
        due_s: earliest start: the end of the next dispatch pass. A job of which nothing says when
            it starts is planned then, so its hosts are no gap.
    """
    release_s, unplanned = _releases(jobs), PlannedStart(start_s=None, nodes=())
    rest = tuple(sorted({*reserved} - {name for job in jobs for name in job.planned_nodes}))
    made = []
    for job in jobs:
        plan = known.get(job.job_id, unplanned)
        start_s = job.start_s if plan.start_s is None else plan.start_s
        # If the hosts of an estimate are not said, they are among those reserved for somebody.
        nodes = plan.nodes or job.planned_nodes or (rest if start_s is not None else ())
        if nodes and job.state is JobState.PENDING and job.is_ordinary:
            plan = PlannedStart(start_s=start_s, nodes=tuple(dict.fromkeys(nodes)))
            made.append(_completed(job, plan, release_s, due_s))
        else:
            made.append(job)
    return tuple(made)


def _releases(jobs: Sequence[Job]) -> dict[str, float]:
    """Return when the last ordinary job on each node ends by its limit; inf: unknown."""
    found: dict[str, float] = {}
    for job in jobs:
        if job.state is not JobState.PENDING and job.is_ordinary:
            is_known = job.start_s is not None and job.time_limit_s is not None
            end_s = (job.start_s or 0.0) + (job.time_limit_s or 0.0) if is_known else math.inf
            for name in job.nodes:
                found[name] = max(end_s, found.get(name, 0.0))
    return found


def _completed(job: Job, plan: PlannedStart, release_s: Mapping[str, float], due_s: float) -> Job:
    """Add the hosts that the job still lacks: those that come free first."""
    n_lacking = job.n_nodes - len(plan.nodes)
    coming = sorted((at_s, name) for name, at_s in release_s.items())
    added = [one for one in coming if one[1] not in plan.nodes][: max(0, n_lacking)]
    last_s = max([at_s for at_s, _ in added], default=due_s)
    start_s = plan.start_s
    if start_s is None:
        start_s = last_s if len(added) >= n_lacking and last_s < math.inf else due_s
    nodes = (*plan.nodes, *(name for _, name in added))
    return replace(job, start_s=max(start_s, due_s), planned_nodes=nodes)


def plans(text: str) -> dict[str, PlannedStart]:
    """Parse the planner's file; raises ``ParseError``: it is not that."""
    try:
        said: Any = json.loads(text)
        return {
            str(one["JOB_ID"]).rpartition("@")[2]: PlannedStart(
                start_s=float(one["START_TIME"]),
                nodes=tuple(dict.fromkeys(str(alloc["HOST"]) for alloc in one["ALLOC"])),
            )
            for one in said["PLANS"]
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ParseError(f"not a plan: {text[:60]!r}") from problem


def unfillable_until_s(windows: Sequence[Window], now_s: float) -> dict[str, float]:
    """Return until when each host that bslots names can be backfilled; inf: no limit."""
    found: dict[str, float] = {}
    for window in windows:
        for host in window.hosts:
            found[host] = max(now_s + window.for_s, found.get(host, 0.0))
    return found
