"""Submits the ordinary jobs of a workload at their times.

``server`` calls it in every iteration; ``requests`` starts it.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from bftrainer.batch.local.cluster import LocalCluster
from bftrainer.batch.local.jobs import JobRequest
from bftrainer.batch.local.workload import JobWorkload
from bftrainer.model.errors import BatchSystemError

log = logging.getLogger(__name__)


class WorkloadProgress:
    """A workload and how far it is."""

    def __init__(self, cluster: LocalCluster, workload: JobWorkload) -> None:
        self._cluster = cluster
        self._workload = workload
        self._started_s: float | None = None  # of the present round
        self._next = 0

    def start(self, workload: JobWorkload | None, now_s: float) -> None:
        """Begin (again) with the given workload, or with the one it has."""
        self._workload = workload or self._workload
        self._started_s, self._next = now_s, 0

    def submit_due(self, now_s: float) -> float:
        """Submit what is due and return when the next job is (infinity: none)."""
        while (due_s := self._due_s()) <= now_s:
            if self._next == len(self._workload.items):
                self._started_s, self._next = due_s, 0
                continue
            item = self._workload.items[self._next]
            self._next += 1
            request = JobRequest(
                user=item.user,
                n_nodes=item.n_nodes,
                limit_s=item.limit_s,
                argv=("sleep", f"{item.duration_s:.3f}"),
            )
            try:
                self._cluster.submit(request, now_s)
            except BatchSystemError as refusal:
                log.warning("job %d of the workload is refused: %s", self._next, refusal)
        return due_s

    def _due_s(self) -> float:
        if self._started_s is None:
            return math.inf
        items, repeat_s = self._workload.items, self._workload.repeat_s
        if self._next < len(items):
            return self._started_s + items[self._next].at_s
        return math.inf if repeat_s is None or not items else self._started_s + repeat_s

    def view(self) -> dict[str, Any]:
        """How far it is, for the history."""
        n_items = len(self._workload.items)
        return {"started_s": self._started_s, "n_submitted": self._next, "n_jobs": n_items}
