"""Trainers in the journal that this release cannot read → records that say so.

What one release accepted and wrote another may refuse: a field it does not know, a number it
cannot hold. The journal is whole all the same (``verify`` compares what is written), and a
daemon must start for everybody else. Called by ``projection``; nothing is written back, so
that a release that can read the record finds it as it was.
"""

from __future__ import annotations

from typing import Any

from bftrainer.canonical import CanonicalError, from_plain
from bftrainer.trainer import TrainerRecord, TrainerSpec, TrainerState


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


def _word(plain: Any, name: str, otherwise: str) -> str:
    value = plain.get(name) if isinstance(plain, dict) else None
    return value if isinstance(value, str) else otherwise
