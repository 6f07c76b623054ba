"""Copies of a journal: taken while it is written, put back with what is missing named."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftrainer.cli.main import cli
from bftrainer.journal import InstanceLock, Journal
from bftrainer.journal.backup import back_up, restore
from bftrainer.journal.mark import JOURNAL_NAME, MARK_NAME
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerSpec
from tests.support.waiting import wait_for

SPEC = TrainerSpec(name="net", user="ada", script="/home/ada/train.py")


def opened(state: Path, accepted_loss: int | None = None) -> Journal:
    return Journal.open(
        state / JOURNAL_NAME,
        clock=lambda: 1.0,
        mark_file=state / MARK_NAME,
        accepted_loss=accepted_loss,
    )


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a daemon that runs, with one trainer."""
    directory = tmp_path / "state"
    with opened(directory) as journal:
        journal.begin_incarnation()
        journal.submit(SPEC, 1.0)
    return directory


def test_a_copy_is_a_moment_of_a_journal_that_is_being_written(state: Path, tmp_path: Path) -> None:
    over = threading.Event()
    with opened(state) as journal:
        journal.begin_incarnation()
        journal.write_beside()

        written: list[int] = []

        def write() -> None:
            while not over.is_set():
                written.append(journal.append("word", {"text": "x" * 2000}))
                journal.note("word", {"text": "y" * 2000})

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for number in range(5):
                back_up(state / JOURNAL_NAME, tmp_path / f"copy{number}")
                enough = len(written) + 2  # begun and ended after the copy
                wait_for(lambda enough=enough: len(written) >= enough, timeout_s=60)  # type: ignore[misc]
        finally:
            over.set()
            writer.join()
        last = journal.head().seq
    seqs = []
    for number in range(5):
        copy = tmp_path / f"copy{number}"
        assert copy.stat().st_mode & 0o777 == 0o600
        with Journal.open(copy, clock=lambda: 1.0, mark_file=Path(f"{copy}.mark")) as found:
            assert found.verify() == found.head().seq
            seqs.append(found.head().seq)
    assert seqs == sorted(set(seqs))
    assert seqs[-1] <= last
    assert not list(tmp_path.glob("*-wal"))


def test_what_was_acknowledged_after_the_copy_is_named_and_its_numbers_are_not_used_again(
    state: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    back_up(state / JOURNAL_NAME, copy)
    with opened(state) as journal:
        journal.begin_incarnation()
        assert [journal.submit(SPEC, 2.0).trainer_id for _ in "12"] == ["t2", "t3"]
        acknowledged = journal.head().seq
    done = restore(copy, state)
    assert done.missing is not None
    assert "missing: trainers t2 to t3, incarnations of the daemon 2" in done.missing.cause
    assert f"--accept-loss {acknowledged}" in done.missing.next_step
    assert done.replaced is not None
    with Journal.open(done.replaced, clock=lambda: 1.0) as before:
        assert len(before.trainers()) == 3, "nothing is deleted"
    with pytest.raises(BftError, match="BFT-2213"):
        opened(state)
    with opened(state, acknowledged) as journal:
        journal.begin_incarnation()
        assert journal.submit(SPEC, 3.0).trainer_id == "t4"


def test_the_release_before_goes_on_with_the_copy_of_before_the_upgrade(
    state: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    back_up(state / JOURNAL_NAME, copy)
    with opened(state) as journal:
        journal.begin_incarnation()  # of a newer release, which changes the tables
        journal.submit(SPEC, 2.0)
        acknowledged = journal.head().seq
    with closing(sqlite3.connect(state / JOURNAL_NAME, isolation_level=None)) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(BftError, match="BFT-2203"):
        opened(state)
    with pytest.raises(BftError, match="BFT-1582"):
        back_up(state / JOURNAL_NAME, tmp_path / "newer")
    done = restore(copy, state)
    assert done.missing is not None
    assert "trainers t2" in done.missing.cause
    with opened(state, acknowledged) as journal:
        assert journal.begin_incarnation() == 3
        assert [one.trainer_id for one in journal.trainers()] == ["t1"]


def test_without_the_mark_nothing_is_known_of_later_entries(state: Path, tmp_path: Path) -> None:
    copy, other = tmp_path / "copy", tmp_path / "other"
    back_up(state / JOURNAL_NAME, copy)
    other.mkdir()
    done = restore(copy, other)
    assert (done.missing, done.has_known_mark, done.replaced) == (None, False, None)
    with opened(other) as journal:
        assert [one.trainer_id for one in journal.trainers()] == ["t1"]


def test_what_cannot_be_copied_is_said(state: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    back_up(state / JOURNAL_NAME, copy)
    missing = tmp_path / "nowhere"
    for source, target in (
        (state / JOURNAL_NAME, copy),
        (state / JOURNAL_NAME, missing / "copy"),
        (missing / JOURNAL_NAME, tmp_path / "second"),
    ):
        with pytest.raises(BftError) as raised:
            back_up(source, target)
        assert raised.value.code == "BFT-1581"
    shutil.copy(copy, tmp_path / "later")
    with closing(sqlite3.connect(tmp_path / "later", isolation_level=None)) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(BftError) as raised:
        restore(tmp_path / "later", state)
    assert raised.value.code == "BFT-1582"
    with closing(sqlite3.connect(copy, isolation_level=None)) as database:
        database.execute("UPDATE entries SET payload = '{}' WHERE seq = 1")
    before = (state / JOURNAL_NAME).read_bytes()
    for damaged in (copy, Path(__file__)):
        with pytest.raises(BftError, match=r"BFT-220[25]"):
            restore(damaged, state)
    assert (state / JOURNAL_NAME).read_bytes() == before, "the journal is untouched"
    assert not [path for path in state.iterdir() if path.name.startswith(".")]


def test_a_journal_that_only_its_daemon_may_open_is_not_waited_for(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bftrainer.journal.backup.BUSY_TIMEOUT_S", 0.1)
    with closing(sqlite3.connect(state / JOURNAL_NAME, isolation_level=None)) as own:
        own.execute("PRAGMA locking_mode=EXCLUSIVE")  # as of a daemon on a shared file system
        own.execute("BEGIN IMMEDIATE")
        own.execute("COMMIT")
        with pytest.raises(BftError) as raised:
            back_up(state / JOURNAL_NAME, tmp_path / "copy")
    assert raised.value.code == "BFT-2208"
    assert list(tmp_path.iterdir()) == [state]


def test_the_verbs_say_what_they_did(state: Path, tmp_path: Path) -> None:
    def run(*argv: str) -> str:
        done = CliRunner().invoke(cli, ["journal", *argv, "--state-dir", str(state)])
        return done.output + (f" {done.exception}" if done.exit_code else "")

    copy = str(tmp_path / "copy")
    assert run("backup", copy) == "Copied up to entry 2, 1970-01-01 00:00:01 UTC.\n"
    with opened(state) as journal:
        journal.begin_incarnation()
        journal.submit(SPEC, 2.0)
    with InstanceLock.acquire(state):
        assert "BFT-1102" in run("restore", copy), "a daemon runs"
    said = run("restore", copy)
    assert "Restored up to entry 2" in said
    assert "has lost its last 2 of 4 acknowledged entries; missing: trainers t2" in said
    assert "--accept-loss 4" in said
