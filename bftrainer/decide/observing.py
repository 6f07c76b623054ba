"""What decisions remember, brought up to what is observed: the first stage.

Each estimator is a fold over its own part of ``Memory``; they are asked in this order, for
later ones build on what earlier ones have seen. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from bftrainer.decide import cycles, end_cost, giveback, joining, overdue, passed_over, slow_nodes
from bftrainer.events.idle import observe_idle
from bftrainer.model.decision import DecisionInput, Memory


class Estimator(Protocol):
    """Keeps an estimate of something that no single look shows."""

    def __call__(self, memory: Memory, given: DecisionInput, /) -> Memory:
        """Return the memory with the estimate as it is after this input."""


def _count_idle(memory: Memory, given: DecisionInput) -> Memory:
    if not given.is_new_snapshot:
        return memory
    return replace(
        memory,
        idle_seen=observe_idle(memory.idle_seen, given.snapshot, given.settings.idle_confirmations),
    )


ESTIMATORS: tuple[Estimator, ...] = (
    _count_idle,  # in how many looks in a row each node was idle
    cycles.observe,  # when the scheduler's last cycles began
    giveback.observe,  # which nodes are left to jobs
    passed_over.observe,  # who had nodes and did not start
    overdue.observe,  # how long agents take to come
    joining.observe,  # how long nodes take until they train
    end_cost.observe,  # how long ends and starts of pilots take
    slow_nodes.observe,  # which nodes are slow
)


def observe(given: DecisionInput) -> Memory:
    """Bring the memory up to the input."""
    memory = given.memory
    for estimator in ESTIMATORS:
        memory = estimator(memory, given)
    return memory
