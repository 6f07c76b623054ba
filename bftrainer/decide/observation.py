"""Updates the decision's memory from what was observed: the first stage.

Each estimator is a fold over its own part of ``Memory``. The order matters: later ones use the
results of earlier ones. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from bftrainer.decide import (
    cycles,
    end_cost,
    fair_share,
    giveback,
    skipped_jobs,
    slow_nodes,
    timeouts,
    turns,
    warm_up,
)
from bftrainer.decide.idle_counts import observe_idle
from bftrainer.model.decision import DecisionInput, Memory


class Estimator(Protocol):
    """Maintains an estimate that no single snapshot shows."""

    def __call__(self, memory: Memory, given: DecisionInput, /) -> Memory:
        """Return the memory updated with this input."""


def _count_idle(memory: Memory, given: DecisionInput) -> Memory:
    if not given.is_new_snapshot:
        return memory
    return replace(
        memory,
        idle_seen=observe_idle(memory.idle_seen, given.snapshot, given.settings.idle_confirmations),
    )


ESTIMATORS: tuple[Estimator, ...] = (
    _count_idle,  # number of consecutive snapshots in which each node was idle
    cycles.observe,  # begins of the latest scheduler cycles
    giveback.observe,  # nodes held off for jobs
    skipped_jobs.observe,  # jobs that did not start despite free nodes
    timeouts.observe,  # time agents need to connect
    warm_up.observe,  # warm-up of nodes
    end_cost.observe,  # duration of pilot ends and starts
    slow_nodes.observe,  # slow nodes
    fair_share.observe,  # what users used
    turns.observe,  # trainers that wait
)


def observe(given: DecisionInput) -> Memory:
    """Update the memory with the input."""
    memory = given.memory
    for estimator in ESTIMATORS:
        memory = estimator(memory, given)
    return memory
