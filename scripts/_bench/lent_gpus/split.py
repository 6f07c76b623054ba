"""Jobs that ran on shared nodes → idle GPU time, on idle nodes and on partly used ones. Pure.

A node on which any ordinary job runs is used, whether or not the job has a GPU; its GPUs that no
job has are leftover. GPUs of a node without a job are idle as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bftrainer.lab.site.machine import SiteJob
from bftrainer.lab.site.timeline import positions

Window = tuple[float, float]  # from, to, s
Change = tuple[float, int, int]  # at, jobs more, GPUs in use more


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSplit:
    """GPU-seconds of a machine."""

    used_gpu_s: float
    whole_gpu_s: float  # idle, on nodes without a job
    leftover_gpu_s: float  # idle, on nodes that jobs use a part of

    @property
    def idle_gpu_s(self) -> float:
        """All that no job had."""
        return self.whole_gpu_s + self.leftover_gpu_s

    @property
    def utilisation(self) -> float:
        """Used, of all there were."""
        return self.used_gpu_s / (self.used_gpu_s + self.idle_gpu_s)

    @property
    def leftover_share(self) -> float:
        """Leftover, of all that was idle."""
        return self.leftover_gpu_s / self.idle_gpu_s if self.idle_gpu_s else math.nan


def together(splits: Iterable[IdleSplit]) -> IdleSplit:
    """Add the splits of several runs up."""
    parts = list(splits)
    return IdleSplit(
        used_gpu_s=sum(split.used_gpu_s for split in parts),
        whole_gpu_s=sum(split.whole_gpu_s for split in parts),
        leftover_gpu_s=sum(split.leftover_gpu_s for split in parts),
    )


def split_of(
    jobs: Iterable[SiteJob], n_nodes: int, gpus_per_node: int, window: Window
) -> IdleSplit:
    """Return what was idle within a window, node by node."""
    from_s, to_s = window
    used_gpu_s = whole_gpu_s = leftover_gpu_s = 0.0
    for changes in _changes(jobs, n_nodes, gpus_per_node):
        n_jobs = n_used = 0
        before_s = from_s
        for at_s, jobs_more, gpus_more in [*sorted(changes), (to_s, 0, 0)]:
            now_s = min(max(at_s, from_s), to_s)
            used_gpu_s += n_used * (now_s - before_s)
            if n_jobs:
                leftover_gpu_s += (gpus_per_node - n_used) * (now_s - before_s)
            else:
                whole_gpu_s += gpus_per_node * (now_s - before_s)
            n_jobs, n_used, before_s = n_jobs + jobs_more, n_used + gpus_more, now_s
    return IdleSplit(used_gpu_s=used_gpu_s, whole_gpu_s=whole_gpu_s, leftover_gpu_s=leftover_gpu_s)


def _changes(jobs: Iterable[SiteJob], n_nodes: int, gpus_per_node: int) -> list[list[Change]]:
    """Return the starts and ends of jobs on each node."""
    changes: list[list[Change]] = [[] for _ in range(n_nodes)]
    for job in jobs:
        if job.start_s is None:
            continue
        share = job.spec.share
        gpus = share.gpus if share else gpus_per_node
        for node in positions(job.nodes):
            changes[node].append((job.start_s, 1, gpus))
            if job.end_s is not None:
                changes[node].append((job.end_s, -1, -gpus))
    return changes
