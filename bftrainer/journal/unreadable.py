"""Trainers and pilots in the journal that this release cannot read → records it can use.

What one release accepted and wrote another may refuse: a field it does not know, a number it
cannot hold. The journal is whole all the same (``verify`` compares what is written), and a
daemon must start for everybody else. Such a trainer has failed and says so; of such a pilot,
whose job may be on a node, all counts that can be read. Called by ``projection``; nothing is
written back, so that a release that can read the record finds it as it was. Payloads of
entries: ``JournalEntry.payload_if``.
"""

from __future__ import annotations

import contextlib
from typing import Any

from bftrainer.canonical import CanonicalError, from_plain, to_plain
from bftrainer.journal.records import PilotRecord, PilotState
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState


def trainer_of(plain: Any) -> TrainerRecord:
    """Return the trainer; of one that cannot be read its id, owner and why.

    Raises:
        CanonicalError: not even its id is there.
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
    """Return the pilot; of one that cannot be read its id and whatever can.

    Raises:
        CanonicalError: not even its id is there.
        ValueError: that is no id of a pilot.
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
