"""Explains the failures of a trainer that is not final. Pure.

For a final trainer its reason says it. Called by ``service``.
"""

from __future__ import annotations

from bftrainer.fleet.generations.failures import MAX_BACKOFF_S
from bftrainer.model.trainer import TrainerRecord, TrainerState, with_place


def trouble(record: TrainerRecord, budget: int, now_s: float) -> str:
    """Say which failure in a row it had, why, and what happens next; "": none.

    Args:
        record: the trainer.
        budget: the policy's ``failure_budget``.
        now_s: monotonic.
    """
    row = record.failing
    if record.state.is_final or not row.count:
        return ""
    wait_s = row.next_try_s - now_s
    is_running = record.state is TrainerState.RUNNING and record.progress.size
    if is_running:
        begin = "Goes on"
    elif 0.0 < wait_s <= MAX_BACKOFF_S:  # more: the machine was rebooted since
        begin = f"Waits {wait_s:.0f} s" if wait_s >= 1.0 else "Waits a moment"
    else:
        begin = "Is tried again"
    return (
        f"{begin} after failure {row.count} of {budget} without getting any further, on"
        f" {row.node}: {with_place(row.cause, row.place)} Its log: {row.log_path}"
    )


def trouble_sentences(record: TrainerRecord, budget: int, now_s: float) -> tuple[str, ...]:
    """Also say that a cancelled trainer is about to end."""
    found = trouble(record, budget, now_s)
    is_going = record.cancelled_s is not None and not record.state.is_final
    return (*([record.reason] if is_going else []), *([found] if found else []))
