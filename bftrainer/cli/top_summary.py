"""Columns, order and sums of all trainers, for ``top`` on a screen as in lines."""

from __future__ import annotations

import time
from collections.abc import Iterable

from bftrainer.cli.status import lent_gpu_lines
from bftrainer.model.columns import shown
from bftrainer.model.quantities import quantity
from bftrainer.model.views import StatusView, TrainerView, nodes_of

NAMES = (
    *("id", "name", "user", "state", "nodes", "limits", "epoch", "rate"),
    *("metric", "done", "left", "reason"),
)


def summary(view: StatusView, now_s: float) -> tuple[str, ...]:
    """Return a line each about the daemon, nodes, GPUs if they are lent, and trainers, escaped."""
    n_training, n_waiting, n_ended, samples_per_s = 0, 0, 0, 0.0
    names = list[str]()  # of nodes, and of parts of them
    for trainer in view.trainers:
        if trainer.record.state.is_final:
            n_ended += 1
            continue
        samples_per_s += trainer.record.progress.samples_per_s
        names += trainer.observed_nodes
        if trainer.observed_nodes:
            n_training += 1
        else:
            n_waiting += 1
    n_nodes, _ = nodes_of(names)
    clock = time.strftime("%H:%M:%S", time.localtime(now_s))
    nodes = (
        f"nodes     {n_nodes} train, {view.nodes_held} held, {view.nodes_requested} requested, "
        f"{view.nodes_idle} idle, {view.nodes_total} in all"
    )
    trainers = (
        f"trainers  {n_training} train, {n_waiting} wait, {n_ended} ended, "
        f"{quantity(samples_per_s, 4)} samples/s together"
    )
    head = f"bftrainer {clock}, {shown(view.batch_system)}"
    return head, nodes, *lent_gpu_lines(view, 10), trainers


def sorted_views(views: Iterable[TrainerView]) -> list[TrainerView]:
    """Return those that train first, what has ended last, each in order of submission."""
    return sorted(views, key=lambda view: (view.record.state.is_final, not view.observed_nodes))
