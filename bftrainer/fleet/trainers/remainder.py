"""What stays of trainers that were cancelled before they ran. Pure.

They have no state to go on from. A while after their end the long parts of their specs, which only
workers would need, are no longer kept; name, size, account, reason and times stay as they are for
``status`` and reports, for as long as those of any trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from bftrainer.model.errors import UsageError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec

CLEARED_AFTER_S: Final = 3600.0  # until then 'bftrainer requeue' submits it again
CLEARED_AT_ONCE: Final = 100  # in one entry of the journal
LOOK_EVERY_S: Final = 60.0


def due(records: Iterable[TrainerRecord], now_s: float) -> Sequence[TrainerRecord]:
    """Return records that are to be shortened now, as they are then; at most so many at once."""
    shortened: list[TrainerRecord] = []
    for record in records:
        if not _never_ran(record) or now_s - (record.ended_s or now_s) < CLEARED_AFTER_S:
            continue
        spec = _bare(record.spec)
        if spec != record.spec:
            shortened.append(replace(record, spec=spec, cleared_s=now_s))
        if len(shortened) >= CLEARED_AT_ONCE:
            break
    return shortened


def _never_ran(record: TrainerRecord) -> bool:
    has_begun = record.started_s is not None or record.workers or record.last_generation
    return record.state.is_final and record.cleared_s is None and not has_begun


def _bare(spec: TrainerSpec) -> TrainerSpec:
    if not (spec.args or spec.environment or spec.preamble or spec.curve or spec.utility):
        return spec
    return replace(spec, args=(), environment=(), preamble="", curve=None, utility=None)


def check_whole(record: TrainerRecord) -> None:
    """Refuse to submit a trainer again of which parts are no longer kept.

    Raises:
        UsageError: BFT-1087.
    """
    if record.cleared_s is not None:
        raise UsageError(
            "BFT-1087",
            f"Trainer {record.trainer_id} ended before it ran, and its arguments and environment"
            " are no longer kept.",
            "Submit its script again.",
        )
