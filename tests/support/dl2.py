"""Jobs of DL2's cluster, and what its schedulers gave them."""

from __future__ import annotations

from bftrainer.lab.papers.dl2.cluster import Cluster, Dl2Job
from bftrainer.lab.papers.dl2.setting import MODELS


def job(number: int, kind: str = "vgg-16", epochs: float = 100.0) -> Dl2Job:
    """Return a job that is there from the beginning."""
    return Dl2Job(number=number, type=MODELS.index(kind), arrives=0, epochs=epochs)


def tasks(cluster: Cluster) -> list[tuple[int, int]]:
    """Return the workers and the servers of each job."""
    return [(job.workers, job.servers) for job in cluster.jobs]
