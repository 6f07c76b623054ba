"""Time limits of trainers: how they are written, when they are over, and what lengthens them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from bftrainer.daemon.notifier import Notifier
from bftrainer.fleet.trainers.record_updates import changed, has_time_over
from bftrainer.model.canonical import decode, encode
from bftrainer.model.errors import UsageError
from bftrainer.model.time_limits import limit_text, parse_time_limit
from bftrainer.model.trainer import (
    TrainerChange,
    TrainerRecord,
    TrainerSpec,
    TrainerState,
    as_decided,
    reason,
)

HOUR_S = 3600.0


def begun(limit_s: float | None, **changes: object) -> TrainerRecord:
    """A trainer that began at 100 s."""
    spec = TrainerSpec(name="n", user="u", script="/s", time_limit_s=limit_s)
    record = TrainerRecord(
        trainer_id="t1", spec=spec, state=TrainerState.RUNNING, submitted_s=1.0, started_s=100.0
    )
    return replace(record, **changes)  # type: ignore[arg-type]  # test values


@pytest.mark.parametrize(
    ("text", "seconds", "written"),
    [
        ("90", 5400, "1:30:00"),
        ("90:30", 5430, "1:30:30"),
        ("1:30:00", 5400, "1:30:00"),
        ("2-0", 172_800, "2-00:00:00"),
        ("1-12:30", 131_400, "1-12:30:00"),
        ("1-12:30:15", 131_415, "1-12:30:15"),
        ("0", 0, "0:00:00"),
        ("UNLIMITED", 0, "0:00:00"),
    ],
)
def test_a_limit_is_written_as_for_sbatch(text: str, seconds: float, written: str) -> None:
    assert parse_time_limit(text) == seconds
    assert limit_text(seconds) == written


@pytest.mark.parametrize(
    "text", ["", "soon", "1h", "-5", "1:2:3:4", "1-", "0:0", "٣", "99999999999"]
)
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="BFT-1063"):
        parse_time_limit(text)


def test_it_is_over_after_its_time_whether_it_has_nodes_or_not() -> None:
    assert not has_time_over(begun(HOUR_S), 3699.0)
    assert has_time_over(begun(HOUR_S), 3700.0)
    assert has_time_over(begun(HOUR_S, state=TrainerState.PARKED), 3700.0)
    for never in (
        begun(None),
        begun(HOUR_S, started_s=None),
        begun(HOUR_S, state=TrainerState.FINISHED),
        begun(HOUR_S, cancelled_s=5.0),
    ):
        assert not has_time_over(never, 1e9)


def test_a_longer_limit_lets_it_go_on_and_a_shorter_does_not() -> None:
    over = begun(HOUR_S, overtime_s=3700.0)
    assert "Its time limit of 1:00:00 is over; 'bftrainer update t1 --time" in reason(over, {}, 1e4)
    still = changed(over, TrainerChange(time_limit_s=2 * HOUR_S), 1e4)
    assert (still.spec.time_limit_s, still.overtime_s) == (2 * HOUR_S, 3700.0)
    longer = changed(over, TrainerChange(time_limit_s=10 * HOUR_S), 1e4)
    assert (longer.overtime_s, reason(longer, {}, 1e4)) == (None, "")
    without = changed(over, TrainerChange(time_limit_s=0.0), 1e4)
    assert (without.overtime_s, without.spec.time_limit_s) == (None, None)
    assert changed(over, TrainerChange(weight=2.0), 1e4).overtime_s == 3700.0


def test_nothing_of_it_is_journalled_or_decided_with_without_a_limit() -> None:
    plain = json.loads(encode(begun(None)))
    assert "overtime_s" not in plain
    assert "time_limit_s" not in plain["spec"]
    assert b"time_limit_s" not in encode(TrainerChange(weight=1.0))
    limited = begun(HOUR_S, overtime_s=3700.0)
    assert decode(encode(limited), TrainerRecord) == limited
    assert encode(as_decided(begun(HOUR_S))) == encode(as_decided(begun(None)))


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ((), ["parked time", "failed", "finished"]),
        (("fail",), ["failed"]),
        (("end", "fail"), ["failed", "finished"]),
        (("time",), ["parked time"]),
    ],
)
def test_its_user_hears_of_what_was_asked_for(
    events: tuple[str, ...], told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []

    class Thread:
        def __init__(
            self, target: Callable[..., None], args: tuple[TrainerRecord], **_: object
        ) -> None:
            (record,) = args
            is_limit = "time limit" in record.reason
            heard.append(f"{record.state} time" if is_limit else str(record.state))
            assert target is not None

        def start(self) -> None:
            """Nothing is sent."""

    monkeypatch.setattr("bftrainer.daemon.notifier.threading.Thread", Thread)
    monkeypatch.setattr("bftrainer.daemon.notifier.own_user", lambda: "u")
    over = begun(HOUR_S, overtime_s=3700.0)
    over = replace(over, spec=replace(over.spec, notify="mail:u", notify_at=events))
    notifier = Notifier(lambda: True)
    notifier.ended(over)
    notifier.ended(replace(over, state=TrainerState.FAILED))
    notifier.ended(replace(over, state=TrainerState.FINISHED))
    assert heard == told
