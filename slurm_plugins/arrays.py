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
    array = _TASKS.fullmatch(job_id)
    if array is None:
        raise ParseError(f"not the id of an array: {job_id[:80]!r}")
    ranges = tuple(map(_range, array[2].split(",", MOST_RANGES)[:MOST_RANGES]))
    return Tasks(array[1], ranges, int(array[3] or 0) or None)


def _range(text: str) -> range:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ParseError(f"not the tasks of an array: {text[:80]!r}")
    first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
    return range(first, last + 1, max(1, step))


@dataclass(frozen=True, slots=True)
class Room:
    """The number of tasks of one kind that could start now."""

    nodes: Sequence[Node]
    ours: frozenset[str] = frozenset()  # nodes with a pilot
    _known: dict[tuple[object, ...], int] = field(default_factory=dict)

    @classmethod
    def of(cls, nodes: Sequence[Node], jobs: Sequence[Job]) -> Room:
        """Build it from the nodes and jobs of one poll, pilots marked."""
        ours = set[str]()
        for job in jobs:
            if not job.is_ordinary and job.state is not JobState.PENDING:
                ours.update(job.nodes)
        return cls(nodes, frozenset(ours))

    def for_tasks(self, job: Job) -> int:
        """Upper bound of tasks that fit on free nodes, ours, and free parts of others."""
        n_nodes = max(1, job.n_nodes)
        part = NodeLeft(
            cpus=max(1, math.ceil(job.cpus / n_nodes)),
            gpus=max(job.gpus_per_node, math.ceil(job.gpus / n_nodes)),
        )
        key = (job.partitions, job.n_nodes, job.can_share, part)
        if key not in self._known:
            names = frozenset(job.partitions)
            places = 0
            for node in self.nodes:
                if not names.isdisjoint(node.partitions):
                    places += self._places(node, part, can_share=job.can_share)
            self._known[key] = places // n_nodes
        return self._known[key]

    def _places(self, node: Node, part: NodeLeft, *, can_share: bool) -> int:
        """The number that fits on one node: each takes a part, or the whole node."""
        is_whole = node.state in _COMES_FREE or node.name in self.ours
        node_left = node.left
        if is_whole:
            node_left = NodeLeft(cpus=node.cpus, gpus=node.gpus)
        if node_left is None or not can_share:
            return int(is_whole)
        by_cpus = node_left.cpus // part.cpus
        if not part.gpus:
            return by_cpus
        return min(by_cpus, node_left.gpus // part.gpus)


def written_out(jobs: Sequence[Job], room: Room, n_planned: int) -> tuple[Job, ...]:
    """Replace every array by those of its tasks that could start or that backfill plans.

    Args:
        jobs: of one poll; ``is_entitled`` is set for pending ones.
        room: of the same poll.
        n_planned: tasks of an array that backfill plans (``bf_max_job_array_resv``).
    """
    if not any("[" in job.job_id for job in jobs):
        return tuple(jobs)
    started: Counter[str] = Counter()  # tasks, by array
    for job in jobs:
        if job.state is not JobState.PENDING:
            array_id, _, _ = job.job_id.partition("_")
            started[array_id] += 1
    tasks: list[Job] = []
    for job in jobs:
        tasks += _written(job, started, room, n_planned)
    return tuple(tasks)


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
        fields["n_more_tasks"] = 0
        if position == n_shown:
            fields["n_more_tasks"] = len(tasks) - n_shown
        yield Job(**fields)
