"""Which nodes are idle, for how long, and whether a waiting job could use them. Pure.

The method of the BFTrainer paper, section 2.1: every 10 s the backfill windows of ``bslots`` say
which nodes are idle, and ``jobstat`` which jobs run or wait. Between two jobs a node appears as
idle in one poll only; such nodes are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bftrainer.hostlist import ParseError
from lsf_adapters.bslots import Window
from lsf_adapters.csm.jobstat import JobStat, ListedJob

EVERY_S = 10.0
"""The paper's interval between two polls."""

MOST_NODES = 100_000
"""No machine has more."""

LONGEST_STEP = 3.5
"""Polls further apart than so many intervals say nothing about the time between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """What one poll has found."""

    at_s: float
    idle: Mapping[str, float]  # node -> for how long it stays idle; inf: no limit
    waiting: tuple[ListedJob, ...] = ()  # eligible jobs
    n_nodes: int | None = None  # of the machine, where jobstat says so
    is_named: bool = True  # False: bslots named no hosts, so idle nodes are numbered


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """An idle node."""

    node: str
    for_s: float  # inf: no limit
    is_unfillable: bool  # no waiting job fits


def poll_of(at_s: float, windows: Sequence[Window], jobs: JobStat, *, slots_per_node: int) -> Poll:
    """Combine the answers of one poll.

    Args:
        at_s: when it was made.
        windows: of compute nodes.
        jobs: running and waiting ones.
        slots_per_node: slots of a whole node; a node with fewer free ones is not idle.

    Raises:
        ParseError: there are more idle nodes than any machine has.
    """
    is_named = all(window.hosts for window in windows)
    if is_named:
        idle = _named(windows, slots_per_node)
    else:
        idle = _numbered(windows, slots_per_node, jobs.n_free)
    return Poll(at_s=at_s, idle=idle, waiting=jobs.eligible, n_nodes=jobs.nodes, is_named=is_named)


def _named(windows: Sequence[Window], slots_per_node: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for window in windows:
        for name, slots in window.hosts:
            if slots >= slots_per_node:
                found[name] = max(window.for_s, found.get(name, 0.0))
    return found


def _numbered(
    windows: Sequence[Window], slots_per_node: int, n_free: int | None
) -> dict[str, float]:
    """Number the idle nodes, those with the longest windows first.

    What is free for long is also free for shorter, so the windows are counted as parts of each
    other, not added. jobstat bounds their number: a node may have got a job since bslots ran.
    """
    found: dict[str, float] = {}
    for window in sorted(windows, key=lambda one: -one.for_s):
        count = window.slots // slots_per_node
        if n_free is not None:
            count = min(count, n_free)
        if count > MOST_NODES:
            raise ParseError(f"{count} idle nodes")
        for number in range(len(found) + 1, count + 1):
            found[f"idle{number:05d}"] = window.for_s
    return found


def follows(before: Poll, after: Poll, every_s: float = EVERY_S) -> bool:
    """Whether nothing is missing between two polls."""
    return after.at_s - before.at_s <= LONGEST_STEP * every_s


def confirmed(polls: Sequence[Poll], every_s: float = EVERY_S) -> list[Poll]:
    """Return the polls without nodes that were idle in one poll only.

    A node that is idle only in the first or the last one is dropped, too: it is not confirmed yet.
    """
    made = []
    for poll, nearby in zip(polls, _neighbours(polls, every_s), strict=True):
        near = {name for one in nearby for name in one.idle}
        idle = {name: for_s for name, for_s in poll.idle.items() if name in near}
        made.append(replace(poll, idle=idle))
    return made


def _neighbours(polls: Sequence[Poll], every_s: float) -> Iterator[list[Poll]]:
    for k, poll in enumerate(polls):
        found = []
        if k > 0 and follows(polls[k - 1], poll, every_s):
            found.append(polls[k - 1])
        if k + 1 < len(polls) and follows(poll, polls[k + 1], every_s):
            found.append(polls[k + 1])
        yield found


def gaps(poll: Poll) -> tuple[Gap, ...]:
    """Return the idle nodes of a poll, ordered by name.

    A waiting job fits where at least as many nodes as it wants stay idle until its limit; all of
    these are fillable. The rest is what bftrainer is for.
    """
    fillable: set[str] = set()
    for job in poll.waiting:
        long_enough = {name for name, for_s in poll.idle.items() if for_s >= job.for_s}
        if 0 < job.n_nodes <= len(long_enough):
            fillable |= long_enough
    return tuple(
        Gap(node=name, for_s=for_s, is_unfillable=name not in fillable)
        for name, for_s in sorted(poll.idle.items())
    )
