"""How many trainers one user may have, and how fast they may come."""

from __future__ import annotations

import pytest

from bftrainer.api.admission import Allowance
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState


def unfinished(user: str, count: int) -> list[TrainerRecord]:
    spec = TrainerSpec(name="n", user=user, script="/s.py")
    return [
        TrainerRecord(trainer_id=f"t{n}", spec=spec, state=TrainerState.QUEUED, submitted_s=0.0)
        for n in range(count)
    ]


def test_unfinished_trainers_are_counted_by_user() -> None:
    allowance = Allowance(lambda: (3, 100), clock=lambda: 0.0)
    allowance.check("ann", unfinished("ann", 2) + unfinished("bob", 3))
    with pytest.raises(BftError) as caught:
        allowance.check("bob", unfinished("ann", 2) + unfinished("bob", 3))
    assert caught.value.code == "BFT-1030"


def test_submissions_are_counted_for_a_minute_and_by_user() -> None:
    now_s = 100.0
    allowance = Allowance(lambda: (1_000, 3), clock=lambda: now_s)
    for _ in range(3):
        allowance.check("ann", ())
        allowance.took("ann")
        now_s += 10.0
    with pytest.raises(BftError) as caught:
        allowance.check("ann", ())
    assert caught.value.code == "BFT-1031"
    assert caught.value.next_step == "Try again in 30 s."
    allowance.check("bob", ())
    now_s = 160.0
    allowance.check("ann", ())
