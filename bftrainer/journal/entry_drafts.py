"""Entries that are not written yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from bftrainer.journal.differences import Shortened
from bftrainer.journal.records import PilotRecord
from bftrainer.model.canonical import encode, text_of, to_plain
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryDraft:
    """An entry without its number."""

    kind: str
    payload: str | Shortened  # canonical JSON
    trainers: tuple[TrainerRecord, ...] = ()
    pilots: tuple[PilotRecord, ...] = ()
    trainers_text: str = "[]"
    pilots_text: str = "[]"

    @classmethod
    def of(
        cls,
        kind: str,
        payload: object,
        trainers: Sequence[TrainerRecord] = (),
        pilots: Sequence[PilotRecord] = (),
    ) -> Self:
        """Encode the parts of an entry.

        Raises:
            CanonicalError: BFT-2220, a part has no canonical form.
        """
        return cls(
            kind=kind,
            payload=text_of(to_plain(payload)),
            trainers=tuple(trainers),
            pilots=tuple(pilots),
            trainers_text=encode(tuple(trainers)).decode("ascii"),
            pilots_text=encode(tuple(pilots)).decode("ascii"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """A draft whose payload is encoded only when it is written."""

    kind: str
    value: object  # must not change any more


def queued(
    trainer_id: str, spec: TrainerSpec, at_s: float, waits_for: tuple[str, ...]
) -> TrainerRecord:
    """Return the record of a trainer that has just been submitted."""
    return TrainerRecord(
        trainer_id=trainer_id,
        spec=spec,
        state=TrainerState.QUEUED,
        submitted_s=at_s,
        reason="Waits for its first nodes.",
        held_s=at_s if spec.hold else None,
        waits_for=waits_for,
    )
