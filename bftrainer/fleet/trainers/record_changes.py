"""Applies users' changes to trainers' records. Pure. Called by ``actuate.trainers``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftrainer.model.trainer import TrainerChange, TrainerRecord, TrainerSpec, TrainerState


def changed(record: TrainerRecord, change: TrainerChange, now_s: float) -> TrainerRecord:
    """Return the record after a change; it is equal if there was nothing to change."""
    held_s = record.held_s
    if change.is_held is not None:
        held_s = (held_s or now_s) if change.is_held else None
    rung_s = record.rung_s if change.budget in (None, record.spec.budget) else None
    return replace(record, spec=change.applied(record.spec), held_s=held_s, rung_s=rung_s)


def unmet(spec: TrainerSpec, others: Mapping[str, TrainerRecord]) -> tuple[str, ...]:
    """Return the trainers that a submitted one has to wait for."""
    asked = dict.fromkeys((*spec.after, *spec.after_any))
    return tuple(i for i in asked if not (i in others and _meets(others[i], spec)))


def freed(ended: TrainerRecord, others: Iterable[TrainerRecord]) -> tuple[TrainerRecord, ...]:
    """Return the records that no longer wait for a trainer, now that it has ended."""
    return tuple(
        replace(other, waits_for=tuple(i for i in other.waits_for if i != ended.trainer_id))
        for other in others
        if ended.trainer_id in other.waits_for
        and not other.state.is_final
        and _meets(ended, other.spec)
    )


def again(record: TrainerRecord) -> TrainerSpec:
    """Return what is submitted when a trainer that has ended is requeued."""
    spec, left = record.spec, set(record.waits_for)
    return replace(
        spec,
        hold=False,
        after=tuple(i for i in spec.after if i in left),
        after_any=tuple(i for i in spec.after_any if i in left),
    )


def _meets(ended: TrainerRecord, spec: TrainerSpec) -> bool:
    """Whether the condition on this trainer is met; ``after`` counts before ``after_any``."""
    if ended.trainer_id in spec.after:
        return ended.state is TrainerState.FINISHED
    return ended.state.is_final
