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
        word, colon, value = line.partition(":")
        if colon and word in {"SLOTS", "RUNTIME", "HOSTS"}:
            key = word
            if key == "SLOTS":
                blocks.append({})
            if not blocks or key in blocks[-1]:
                raise ParseError(f"{key} twice, or before SLOTS: {line[:60]!r}")
            blocks[-1][key] = value.strip()
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
    hosts = []
    n_slots = 0
    for match in filter(None, map(_HOST.fullmatch, words)):
        n_slots += int(match[1])
        hosts.append(match[2])
    slots = block["SLOTS"]
    if not slots.isdecimal() or not hosts or len(hosts) != len(words):
        raise ParseError(f"not a backfill window: {str(block)[:120]}")
    if n_slots != int(slots):
        raise ParseError(f"{slots} slots, but other hosts: the output is cut off")
    return Window(for_s=_seconds(block.get("RUNTIME", "")), hosts=tuple(hosts))


def _seconds(text: str) -> float:
    if text.upper() == "UNLIMITED":
        return math.inf
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text).strip():
        raise ParseError(f"not a length of time: {text[:40]!r}")
    return sum(int(n) * _UNIT_S[unit] for n, unit in parts)


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
    nodes_without_job = set(reserved)
    for job in jobs:
        nodes_without_job.difference_update(job.planned_nodes)
    jobs_with_plans = []
    for job in jobs:
        plan = known.get(job.job_id, unplanned)
        start_s = plan.start_s
        if start_s is None:
            start_s = job.start_s
        nodes = plan.nodes or job.planned_nodes
        # If the hosts of an estimate are not said, they are among those reserved for somebody.
        if not nodes and start_s is not None:
            nodes = tuple(sorted(nodes_without_job))
        if nodes and job.state is JobState.PENDING and job.is_ordinary:
            plan = PlannedStart(start_s=start_s, nodes=tuple(dict.fromkeys(nodes)))
            jobs_with_plans.append(_completed(job, plan, release_s, due_s))
        else:
            jobs_with_plans.append(job)
    return tuple(jobs_with_plans)


def _releases(jobs: Sequence[Job]) -> dict[str, float]:
    """Return when the last ordinary job on each node ends by its limit; inf: unknown."""
    release_s: dict[str, float] = {}
    for job in jobs:
        if job.state is JobState.PENDING or not job.is_ordinary:
            continue
        end_s = math.inf
        if job.start_s is not None and job.time_limit_s is not None:
            end_s = job.start_s + job.time_limit_s
        for name in job.nodes:
            release_s[name] = max(end_s, release_s.get(name, 0.0))
    return release_s


def _completed(job: Job, plan: PlannedStart, release_s: Mapping[str, float], due_s: float) -> Job:
    """Add the hosts that the job still lacks: those that come free first."""
    n_lacking = job.n_nodes - len(plan.nodes)
    candidates = sorted(
        release_s.keys() - set(plan.nodes), key=lambda name: (release_s[name], name)
    )
    further_nodes = candidates[: max(0, n_lacking)]
    start_s = plan.start_s
    if start_s is None:
        start_s = due_s
        last_release_s = max(map(release_s.__getitem__, further_nodes), default=due_s)
        if len(further_nodes) >= n_lacking and last_release_s < math.inf:
            start_s = last_release_s
    nodes = (*plan.nodes, *further_nodes)
    return replace(job, start_s=max(start_s, due_s), planned_nodes=nodes)


def plans(text: str) -> dict[str, PlannedStart]:
    """Parse the planner's file; raises ``ParseError``: it is not that."""
    try:
        document: Any = json.loads(text)
        start_of = {}
        for plan in document["PLANS"]:
            _, _, job_id = str(plan["JOB_ID"]).rpartition("@")
            hosts = (str(allocation["HOST"]) for allocation in plan["ALLOC"])
            start_of[job_id] = PlannedStart(
                start_s=float(plan["START_TIME"]), nodes=tuple(dict.fromkeys(hosts))
            )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ParseError(f"not a plan: {text[:60]!r}") from problem
    return start_of


def unfillable_until_s(windows: Sequence[Window], now_s: float) -> dict[str, float]:
    """Return until when each host that bslots names can be backfilled; inf: no limit."""
    until_s: dict[str, float] = {}
    for window in windows:
        for host in window.hosts:
            until_s[host] = max(now_s + window.for_s, until_s.get(host, 0.0))
    return until_s
