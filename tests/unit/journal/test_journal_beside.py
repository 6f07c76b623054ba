"""Notes are written by a thread: nobody waits for the disk, and nothing is lost or overtaken."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.journal import Journal, PilotRecord, PilotState, backlog
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerSpec
from tests.support.journals import Look
from tests.support.waiting import wait_for

SPEC = TrainerSpec(name="net", user="ada", script="/home/ada/train.py")
PILOT = PilotRecord(
    pilot_id="p000001",
    node="n1",
    job_id=None,
    public_key="k" * 40,
    requested_s=5.0,
    time_limit_s=600.0,
    owner="ada",
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.db", clock=time.time) as opened:
        opened.begin_incarnation()
        opened.write_beside()
        yield opened


@contextmanager
def disk_busy(journal: Journal) -> Iterator[None]:
    """Nobody else writes meanwhile; less than the 5 s after which that is an error."""
    with closing(sqlite3.connect(journal.where, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def test_who_notes_does_not_wait_for_the_disk(journal: Journal) -> None:
    with disk_busy(journal):
        for turn in range(5):
            journal.note("turn", {"n": turn})
            journal.note_large("look", Look(turn=turn))
        assert journal.trouble is None  # who waited would have met its 5 s
        assert journal.last_seq("turn") is None
    journal.flush()
    kinds = [entry.kind for entry in journal.entries()]
    assert kinds == ["start", *["turn", "look"] * 5]
    assert [e.payload_as(Look) for e in journal.entries("look")] == [Look(turn=n) for n in range(5)]
    assert journal.last_seq("look") == 11


def test_closing_writes_what_waits(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal.open(path, clock=time.time) as opened:
        opened.write_beside()
        for number in range(3 * backlog.BATCH):
            opened.note("turn", {"n": number})
        opened.close()
    with Journal.open(path, clock=time.time) as opened:
        found = [entry.payload["n"] for entry in opened.entries()]
        assert found == list(range(3 * backlog.BATCH))
    assert not [thread for thread in threading.enumerate() if thread.name == "journal"]


def test_who_submits_waits_for_the_disk_and_not_for_notes(journal: Journal) -> None:
    with disk_busy(journal):
        for turn in range(200):
            journal.note("turn", {"n": turn})
    record = journal.submit(SPEC, 1.0)
    with Journal.open(journal.where, clock=time.time) as reader:
        assert reader.trainers() == (record,)
    journal.flush()
    assert len(list(journal.entries("turn"))) == 200
    assert journal.verify() == 202


def test_of_what_waits_too_long_the_latest_records_are_kept(journal: Journal) -> None:
    journal.append("asked", {}, pilots=[PILOT])
    gone = replace(PILOT, state=PilotState.ENDED, ended_s=9.0)
    with disk_busy(journal):
        journal.note_large("look", Look(turn=0))
        thread = journal._beside
        assert thread is not None
        wait_for(lambda: not thread._queue, what="it is being written")
        for turn in range(1, backlog.LARGE_QUEUED + 3):
            journal.note_large("look", Look(turn=turn))
        running = replace(PILOT, state=PilotState.RUNNING)
        for _ in range(backlog.QUEUED):
            journal.note("turn", {}, pilots=[running])
        journal.note("end", {"n": 1}, pilots=[gone])
    journal.flush()
    assert journal.pilots() == (gone,)
    [late] = journal.entries("caught-up")
    assert late.payload["late"]["turn"] == backlog.QUEUED
    looks = [e.payload_as(Look).turn for e in journal.entries("look")]
    assert looks == list(range(backlog.LARGE_QUEUED + 1))
    assert [e.payload for e in journal.entries("end")] == [{"n": 1}]
    journal.note("turn", {}, pilots=[replace(gone, reason="It was late.")])
    journal.flush()
    assert journal.pilots()[0].reason == "It was late."
    assert journal.verify() > 0


def test_a_daemon_that_was_replaced_hears_of_it(journal: Journal) -> None:
    with Journal.open(journal.where, clock=time.time) as new:
        new.begin_incarnation()
        journal.note("turn", {"n": 1})
        journal.flush()
        for act in (journal.catch_up, lambda: journal.note("turn", {"n": 2})):
            with pytest.raises(BftError, match="BFT-2209"):
                act()
        assert [e.kind for e in new.entries()] == ["start", "start"]


def test_a_disk_that_fails_is_waited_for(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("bftrainer.journal.tables.write", _full)
        journal.note("turn", {"n": 1}, pilots=[PILOT])
        journal.note_large("look", Look(turn=1))
        wait_for(lambda: journal.trouble is not None, what="it is noticed")
        with pytest.raises(BftError, match="BFT-2201"):
            journal.submit(SPEC, 1.0)
        journal.flush()
    wait_for(lambda: journal.trouble is None, timeout_s=30, what="it is tried again")
    assert [e.kind for e in journal.entries()] == ["start", "caught-up", "turn"]
    assert journal.pilots() == (PILOT,)
    journal.note_large("look", Look(turn=2))
    journal.flush()
    [look] = journal.entries("look")
    assert look.payload_as(Look) == Look(turn=2)


def _full(*_: object) -> tuple[int, str]:
    from bftrainer.journal.errors import JournalError

    raise JournalError.of("BFT-2201", "there")


def test_closing_tries_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.db"
    with Journal.open(path, clock=time.time) as opened:
        opened.write_beside()
        with monkeypatch.context() as patched:
            patched.setattr("bftrainer.journal.tables.write", _full)
            opened.note("turn", {"n": 1}, pilots=[PILOT])
            opened.flush()
            assert opened.trouble is not None
    with Journal.open(path, clock=time.time) as opened:
        assert opened.pilots() == (PILOT,)
        assert [e.kind for e in opened.entries()] == ["caught-up", "turn"]
