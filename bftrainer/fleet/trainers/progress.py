"""Updates a trainer's record with what its workers did or reported. Pure.

Called by ``actuate.trainers``, which stores and journals the records.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.elastic.protocol import Progress
from bftrainer.fleet.generations.generation import mark_of
from bftrainer.fleet.generations.members import Parked, Regrouped, Rescaled
from bftrainer.fleet.trainers import lives
from bftrainer.fleet.trainers.outcomes import still
from bftrainer.model.trainer import (
    Lives,
    Mark,
    MeasuredCosts,
    TrainerProgress,
    TrainerRecord,
    TrainerState,
)


def lived(record: TrainerRecord, said: Progress) -> TrainerRecord:
    """Return the record with what a report of the present generation says of this life."""
    if said.generation != record.progress.generation:
        return record
    now = lives.progressed(record.lives, mark_of(said))
    return record if now is record.lives else replace(record, lives=now)


def progressed(
    record: TrainerRecord, said: Progress, costs: MeasuredCosts, now_s: float
) -> TrainerRecord:
    """Return the record after a member's report.

    The generation stays: it changes together with the size, when the last member has entered.
    """
    progress = replace(
        record.progress,
        step=said.step,
        epoch=said.epoch,
        samples=said.samples,
        samples_per_s=said.samples_per_s,
        total=said.total or record.progress.total,
        reported_s=now_s,
        node_s=_attained_node_s(record.progress, now_s),
    )
    return replace(record, costs=costs, progress=progress)


def rescaled(
    record: TrainerRecord, done: Rescaled, costs: MeasuredCosts, now_s: float
) -> TrainerRecord:
    """Return the record after a complete generation."""
    return replace(
        record,
        state=TrainerState.RUNNING,
        reason=still(record, ""),
        started_s=record.started_s if record.started_s is not None else now_s,
        rescales=record.rescales + (1 if done.size_before else 0),
        costs=costs,
        progress=_entered(record.progress, done, now_s),
        lives=_begun(record, done, now_s),
    )


def _begun(record: TrainerRecord, done: Rescaled, now_s: float) -> Lives:
    if done.is_restart:
        return lives.began(record.lives, None, now_s)
    if done.size_before:
        return record.lives
    at = Mark(step=done.step, epoch=done.epoch, samples=done.samples)
    return lives.began(record.lives, at, now_s)


def regrouped(record: TrainerRecord, done: Regrouped, now_s: float) -> TrainerRecord:
    """Return the record after a generation that agents announced without a daemon."""
    return replace(
        record,
        last_generation=max(record.last_generation, done.generation),
        rescales=record.rescales + 1,
        progress=_entered(record.progress, done, now_s),
    )


def parked(record: TrainerRecord, done: Parked, now_s: float) -> TrainerRecord:
    """Return the record when no member is left."""
    return replace(
        record,
        state=TrainerState.PARKED,
        reason=still(record, "It has no nodes; it resumes from its last checkpoint."),
        progress=replace(record.progress, size=0, samples_per_s=0.0),
        lives=lives.ended(record.lives, now_s, is_saved=done.is_saved),
    )


def _attained_node_s(progress: TrainerProgress, now_s: float) -> float:
    """Node-seconds attained until now: its size has not changed since the last report."""
    return progress.node_s + progress.size * max(0.0, now_s - progress.reported_s)


def _entered(
    progress: TrainerProgress, done: Rescaled | Regrouped, now_s: float
) -> TrainerProgress:
    return replace(
        progress,
        generation=done.generation,
        size=done.size,
        step=done.step,
        epoch=done.epoch,
        samples=done.samples,
        samples_per_s=0.0,
        reported_s=now_s,
        node_s=_attained_node_s(progress, now_s),
        backend=done.backend if isinstance(done, Rescaled) else "",
        batch=done.batch if isinstance(done, Rescaled) else progress.batch,
    )
