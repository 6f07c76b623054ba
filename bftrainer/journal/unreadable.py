"""Substitutes for trainers and pilots in the journal that this release cannot read.

Another release may have written fields or values that this one refuses. The journal is intact
all the same (``verify`` compares the text), and the daemon must start for all other records.
Such a trainer becomes failed, with the reason. Of such a pilot, whose job may be on a node, all
readable fields are used. Nothing is written back, so a release that can read the record finds it
unchanged. Called by ``projection``. For payloads of entries see ``JournalEntry.payload_if``.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bftrainer.journal.records import PilotRecord, PilotState
from bftrainer.model.canonical import CanonicalError, from_plain, to_plain
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState


def trainer_of(plain: Any) -> TrainerRecord:
    """Return the trainer; if unreadable, a failed one with its id, owner and the reason.

    Raises:
        CanonicalError: even its id is missing.
    """
    try:
        return from_plain(plain, TrainerRecord)
    except CanonicalError as problem:
        trainer_id = _word(plain, "trainer_id", "")
        if not trainer_id:
            raise
        spec = plain.get("spec")
        state = _word(plain, "state", "")
        is_over = state in {one.value for one in TrainerState if one.is_final}
        submitted_s = plain.get("submitted_s")
        return TrainerRecord(
            trainer_id=trainer_id,
            spec=TrainerSpec(
                name=_word(spec, "name", "?"), user=_word(spec, "user", "?"), script="?"
            ),
            state=TrainerState(state) if is_over else TrainerState.FAILED,
            submitted_s=submitted_s if isinstance(submitted_s, float) else 0.0,
            reason=f"BFT-1028: this release cannot read it ({str(problem.cause)[:200]})"
            " Submit it again, or start the release that wrote it.",
        )


def pilot_of(plain: Any) -> PilotRecord:
    """Return the pilot; if unreadable, one with its id and all readable fields.

    Raises:
        CanonicalError: even its id is missing.
        ValueError: its id is not one of a pilot.
    """
    try:
        return from_plain(plain, PilotRecord)
    except CanonicalError:
        pilot_id = _word(plain, "pilot_id", "")
        if not pilot_id:
            raise
    found = PilotRecord(
        pilot_id=pilot_id,
        node="?",
        job_id=None,
        public_key="",
        requested_s=0.0,
        time_limit_s=0.0,
        owner="?",
        state=PilotState.ENDED,
    )
    for name in plain.keys() & to_plain(found).keys():
        with contextlib.suppress(CanonicalError):
            found = from_plain({**to_plain(found), name: plain[name]}, PilotRecord)
    return found


def _word(plain: Any, name: str, otherwise: str) -> str:
    value = plain.get(name) if isinstance(plain, dict) else None
    return value if isinstance(value, str) else otherwise
