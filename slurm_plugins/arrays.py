"""Expands job arrays as far as it matters: each pending task becomes a job.

``squeue`` shows the pending tasks of an array as one row, ``12_[1-9%2]``. The tasks that could
start now and those that backfill plans (``bf_max_job_array_resv``) become jobs; the last one holds
the number of further tasks. ``squeue -r`` would expand all of them and hide the limit (``%2``).
Rows and nodes of one poll come in, jobs go out; called by ``slurm_plugins.snapshot``, and by
``slurm_plugins.parse`` to check ids. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from bftrainer.model.cluster import Job, JobState, Node, NodeLeft, NodeState
from bftrainer.model.hostlist import ParseError

MOST_TASKS = 1_000  # expanded per array; the others follow in later polls
MOST_RANGES = 5_000
_TASKS = re.compile(r"([0-9]+)_\[([0-9,:-]+)(?:%([0-9]{1,9}))?\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?")
_COMES_FREE = (NodeState.IDLE, NodeState.PLANNED, NodeState.COMPLETING)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The pending tasks of an array."""

    base_id: str
    ranges: tuple[range, ...]
    at_once: int | None  # limit of running tasks; None: no limit

    def __len__(self) -> int:
        return sum(map(len, self.ranges))


def tasks_of(job_id: str) -> Tasks | None:
    """Parse the id of an array; ``None``: it is a single job's.

    Raises:
        ParseError: it is neither.
    """
    if "[" not in job_id:
        return None
    found = _TASKS.fullmatch(job_id)
    if found is None:
        raise ParseError(f"not the id of an array: {job_id[:80]!r}")
    ranges = tuple(map(_range, found[2].split(",", MOST_RANGES)[:MOST_RANGES]))
    return Tasks(found[1], ranges, int(found[3] or 0) or None)


def _range(text: str) -> range:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ParseError(f"not the tasks of an array: {text[:80]!r}")
    return range(int(found[1]), int(found[2] or found[1]) + 1, max(1, int(found[3] or 1)))


@dataclass(frozen=True, slots=True)
class Room:
    """The number of tasks of one kind that could start now."""

    nodes: Sequence[Node]
    ours: frozenset[str] = frozenset()  # nodes with a pilot
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Sequence[Node], jobs: Sequence[Job]) -> Room:
        """Build it from the nodes and jobs of one poll, pilots marked."""
        runs = [job for job in jobs if not job.is_ordinary and job.state is not JobState.PENDING]
        return cls(nodes, frozenset(name for job in runs for name in job.nodes))

    def for_tasks(self, job: Job) -> int:
        """Upper bound of tasks that fit on free nodes, ours, and free parts of others."""
        each = NodeLeft(
            cpus=max(1, math.ceil(job.cpus / max(1, job.n_nodes))),
            gpus=max(job.gpus_per_node, math.ceil(job.gpus / max(1, job.n_nodes))),
        )
        key = (job.partitions, job.n_nodes, job.can_share, each)
        if key not in self._known:
            names = frozenset(job.partitions)
            fitting = [node for node in self.nodes if not names.isdisjoint(node.partitions)]
            places = sum(self._places(node, each if job.can_share else None) for node in fitting)
            self._known[key] = places // max(1, job.n_nodes)
        return self._known[key]

    def _places(self, node: Node, each: NodeLeft | None) -> int:
        """The number that fits on one node; ``each`` None: they take whole nodes."""
        is_whole = node.state in _COMES_FREE or node.name in self.ours
        left = NodeLeft(cpus=node.cpus, gpus=node.gpus) if is_whole else node.left
        if left is None or each is None:
            return int(is_whole)
        return min(left.cpus // each.cpus, left.gpus // each.gpus if each.gpus else left.cpus)


def written_out(jobs: Sequence[Job], room: Room, n_planned: int) -> tuple[Job, ...]:
    """Replace every array by those of its tasks that could start or that backfill plans.

    Args:
        jobs: of one poll; ``is_entitled`` is set for pending ones.
        room: of the same poll.
        n_planned: tasks of an array that backfill plans (``bf_max_job_array_resv``).
    """
    if not any("[" in job.job_id for job in jobs):
        return tuple(jobs)
    started = Counter(
        job.job_id.partition("_")[0] for job in jobs if job.state is not JobState.PENDING
    )
    return tuple(task for job in jobs for task in _written(job, started, room, n_planned))


def _written(job: Job, started: Counter[str], room: Room, n_planned: int) -> Iterator[Job]:
    tasks = tasks_of(job.job_id)
    if tasks is None:
        yield job
        return
    n_may_start = len(tasks)
    if tasks.at_once is not None:
        n_may_start = tasks.at_once - started[tasks.base_id]
    if n_may_start <= 0:
        job = dataclasses.replace(job, reason="JobArrayTaskLimit", is_entitled=False)
    n_shown = 1  # one job stands for all tasks of an array that is not entitled
    if job.is_entitled:
        n_shown = max(1, room.for_tasks(job) + n_planned)
        n_shown = min(len(tasks), n_may_start, n_shown, MOST_TASKS)
    # Twice as fast as ``replace``: a poll may show thousands.
    fields: dict[str, Any] = {f.name: getattr(job, f.name) for f in dataclasses.fields(job)}
    numbers = itertools.islice(itertools.chain(*tasks.ranges), n_shown)
    for position, number in enumerate(numbers, 1):
        fields["job_id"] = f"{tasks.base_id}_{number}"
        fields["n_more_tasks"] = len(tasks) - n_shown if position == n_shown else 0
        yield Job(**fields)
