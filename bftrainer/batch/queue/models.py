"""The queue model that a snapshot names; a decision is repeated without its adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bftrainer.batch.queue.lsf import LsfQueue
from bftrainer.batch.queue.model import QueueModel
from bftrainer.batch.queue.snapshot_model import PrintedQueue
from bftrainer.model.cluster import Snapshot

MODELS: Mapping[str, Callable[[Snapshot, float, float], QueueModel]] = {
    "printed": PrintedQueue,
    "lsf": LsfQueue,
}


def queue_of(snapshot: Snapshot, now_s: float, cycle_s: float) -> QueueModel:
    """Return the model of a complete snapshot; arguments as of ``PrintedQueue``."""
    return MODELS[snapshot.queue_model](snapshot, now_s, cycle_s)
