"""What a journal may forget: checkpoints, starts that read no further back, removal."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from bftrainer.cli.main import main
from bftrainer.daemon.harm import backoff
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.monitor import SAID_AGAIN_S, HarmMonitor
from bftrainer.journal import InstanceLock, Journal, PilotRecord, PilotState, tables
from bftrainer.journal.mark import MARK_NAME
from bftrainer.model.decision import Settings
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.site.policy.model import SitePolicy
from tests.support.journals import Look
from tests.support.waiting import wait_for

SPEC = TrainerSpec(name="net", user="ada", script="/home/ada/train.py")
DAY_S = 86_400.0


class DatedJournal:
    """A journal whose clock is set by the test."""

    def __init__(self, directory: Path) -> None:
        self.path, self.mark = directory / "journal.db", directory / MARK_NAME
        self.now_s = DAY_S

    def open(self) -> Journal:
        return Journal.open(self.path, clock=lambda: self.now_s, mark_file=self.mark)

    def change(self, statement: str) -> None:
        engine = sa.create_engine(f"sqlite:///{self.path}")
        with engine.begin() as connection:
            assert connection.exec_driver_sql(statement).rowcount == 1
        engine.dispose()


@pytest.fixture
def dated(tmp_path: Path) -> DatedJournal:
    return DatedJournal(tmp_path)


def pilot(number: int, state: PilotState = PilotState.RUNNING) -> PilotRecord:
    return PilotRecord(
        pilot_id=f"p{number:06d}",
        node=f"n{number}",
        job_id=str(number),
        public_key="k" * 40,
        requested_s=5.0,
        time_limit_s=600.0,
        owner="ada",
        state=state,
    )


def ended(record: TrainerRecord, at_s: float) -> TrainerRecord:
    return replace(record, state=TrainerState.FINISHED, ended_s=at_s)


def days(dated: DatedJournal, journal: Journal, count: int, keep_s: float) -> None:
    """Write a checkpoint at the end of each day; on each a trainer and a pilot end."""
    for _ in range(count):
        [pilot_id] = journal.next_pilot_ids(1)
        journal.append("asked", {}, pilots=[pilot(int(pilot_id[1:]))])
        record = journal.submit(SPEC, dated.now_s)
        for turn in range(3):
            journal.note_large("look", Look(turn=turn))
        gone = pilot(int(pilot_id[1:]), PilotState.ENDED)
        journal.append("over", {}, trainers=[ended(record, dated.now_s)], pilots=[gone])
        journal.checkpoint(dated.now_s - keep_s)
        dated.now_s += DAY_S


def test_a_start_reads_what_follows_from_the_last_checkpoint(dated: DatedJournal) -> None:
    with dated.open() as journal:
        journal.begin_incarnation()
        journal.append("early", {"n": 1}, pilots=[pilot(1)])
        assert journal.checkpoint(0.0) == 3
        journal.append("late", {"n": 2}, pilots=[pilot(2)])
    dated.change("""UPDATE entries SET payload = '{"n":7}' WHERE seq = 2""")
    with dated.open() as journal:
        assert [p.pilot_id for p in journal.pilots()] == ["p000001", "p000002"]
        with pytest.raises(BftError, match=r"BFT-2205.*the checksum of entry 2"):
            journal.verify()
    dated.change("""UPDATE entries SET payload = '{"n":1}' WHERE seq = 2""")
    for statement, cause in (
        ("""UPDATE entries SET payload = '{"n":7}' WHERE seq = 4""", "checksum of entry 4"),
        ("UPDATE entries SET pilots = '[]' WHERE seq = 3", "checksum of entry 3"),
        ("UPDATE pilots SET node = 'n9' WHERE ordinal = 1", "the state of p000001"),
        ("DELETE FROM pilots WHERE ordinal = 1", "the state of p000001"),
    ):
        copy = DatedJournal(dated.path.parent / "copy")
        copy.path.parent.mkdir()
        for name in (dated.path, dated.mark):
            shutil.copy(name, copy.path.parent)
        copy.change(statement)
        with pytest.raises(BftError, match=rf"BFT-2205.*{cause}"):
            copy.open()
        shutil.rmtree(copy.path.parent)


def test_a_checkpoint_forgets_what_is_over_and_no_number(dated: DatedJournal) -> None:
    with dated.open() as journal:
        journal.begin_incarnation()
        days(dated, journal, 4, keep_s=2.5 * DAY_S)
        assert [t.trainer_id for t in journal.trainers()] == ["t2", "t3", "t4"]
        assert journal.pilots() == ()
        lives = journal.submit(SPEC, 1.0)
        journal.checkpoint(dated.now_s)
        assert journal.trainers() == (lives,)
        journal.append("over", {}, trainers=[ended(lives, 1.0)])
        journal.checkpoint(dated.now_s)
        assert [t.trainer_id for t in journal.trainers()] == ["t5"]  # the numbering needs it
    dated.mark.unlink()
    with dated.open() as journal:
        assert journal.begin_incarnation() == 2
        assert journal.next_pilot_ids(1) == ["p000005"]
        assert journal.submit(SPEC, 1.0).trainer_id == "t6"
        assert journal.verify() == 35


def test_what_is_old_is_removed_and_the_rest_is_whole(dated: DatedJournal) -> None:
    with dated.open() as journal:
        journal.begin_incarnation()
        days(dated, journal, 8, keep_s=3 * DAY_S)
        whole = {entry.seq: entry for entry in journal.entries()}
    shutil.copy(dated.path, dated.path.with_name("before"))
    with dated.open() as journal:
        removed = journal.compact(3 * DAY_S)
        assert removed > 30
        left = list(journal.entries())
        assert left[0].kind == "checkpoint"
        assert left[0].at_s <= dated.now_s - 3 * DAY_S < left[1].at_s
        assert left[:-1] == [whole[entry.seq] for entry in left[:-1]]
        assert journal.verify() == len(left)
    with dated.open() as journal:
        assert journal.begin_incarnation() == 2
        assert journal.verify() == len(left) + 1
        assert journal.compact(0.0) > 0
        assert [entry.kind for entry in journal.entries()] == ["checkpoint"]
    assert dated.path.stat().st_size < dated.path.with_name("before").stat().st_size


def test_a_removal_that_was_cut_short_is_no_damage(
    dated: DatedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "REMOVED_AT_ONCE", 5)
    with dated.open() as journal:
        journal.begin_incarnation()
        days(dated, journal, 5, keep_s=DAY_S)
        cut = journal._find_cut(DAY_S)
        while journal._remove_some(cut):
            assert journal.verify() > 0
            assert [entry.payload for entry in journal.entries()]
            with Journal.open(dated.path, clock=lambda: 0.0) as reader:
                assert len(reader.trainers()) == 2
        assert next(journal.entries()).seq == cut


def test_a_checkpoint_that_says_something_else_is_found(
    dated: DatedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dated.open() as journal:
        journal.begin_incarnation()
        journal.append("asked", {}, pilots=[pilot(1)])
        with monkeypatch.context() as patched:
            begin = tables.begin_checkpoint
            patched.setattr(
                tables, "begin_checkpoint", lambda *a: replace(begin(*a), trainers=(), pilots=())
            )
            journal.checkpoint(0.0)
        with pytest.raises(BftError, match="BFT-2205"):
            journal.verify()


def test_a_mark_older_than_all_that_is_left_is_no_complaint(dated: DatedJournal) -> None:
    with dated.open() as journal:
        journal.begin_incarnation()
        old = dated.mark.read_bytes()
        days(dated, journal, 4, keep_s=DAY_S)
        assert journal.compact(DAY_S) > 0
    dated.mark.write_bytes(old)
    with dated.open() as journal:
        assert journal.trainers()


def test_a_daemon_does_it_by_itself(dated: DatedJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ENTRIES_BETWEEN", 40)
    monkeypatch.setattr(tables, "REMOVED_AT_ONCE", 15)
    with dated.open() as journal:
        journal.begin_incarnation()
        journal.write_beside(keep_s=2 * DAY_S)
        for number in range(1, 6):
            for turn in range(40):
                journal.note_large("look", Look(turn=turn))
                journal.flush()
            journal.note("asked", {}, pilots=[pilot(number)])
            journal.flush()
            dated.now_s += DAY_S
        wait_for(lambda: next(journal.entries()).seq > 40, timeout_s=30, what="removal")
        first = next(journal.entries())
        assert first.kind == "checkpoint"
        assert first.at_s <= dated.now_s - 2 * DAY_S
        journal.flush()
        looks = [entry.payload_as(Look) for entry in journal.entries("look")]
        assert len(looks) >= 80
        assert len(journal.pilots()) == 5
    with dated.open() as journal:
        assert journal.verify() > 80


def test_the_file_of_a_daemon_that_runs_for_long_does_not_grow(
    dated: DatedJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ENTRIES_BETWEEN", 100)
    sizes = list[int]()
    with dated.open() as journal:
        journal.begin_incarnation()
        journal.write_beside(keep_s=100.0)
        for number in range(1500):
            dated.now_s += 1.0
            journal.note("x", {"text": "x" * (1000 + number % 7 * 300)})
            if number % 25 == 0:
                journal.flush()
            if number % 300 == 299:
                files = dated.path.parent.glob("journal.db*")
                sizes.append(sum(file.stat().st_size for file in files))
    assert sizes[-1] < 1.2 * sizes[2], sizes  # by then SQLite's log has its size, too


def test_a_level_that_lasts_outlives_the_entries_that_are_removed(dated: DatedJournal) -> None:
    with dated.open() as journal:
        journal.begin_incarnation()
        journal.append(backoff.KIND, BackOff(level=5, base_nodes=8, late_s=1e12))
        dated.now_s += 40 * DAY_S
        monitor = HarmMonitor(journal, SitePolicy(), lambda: dated.now_s)
        for _ in range(3):
            monitor.applied(Settings())
            dated.now_s += SAID_AGAIN_S / 2
        assert len(list(journal.entries(backoff.KIND))) == 2
        journal.compact(30 * DAY_S)
        assert HarmMonitor(journal, SitePolicy(), lambda: dated.now_s).state.level == 5


def test_the_verbs(dated: DatedJournal, capsys: pytest.CaptureFixture[str]) -> None:
    dated.now_s = 1000.0
    with dated.open() as journal:
        journal.begin_incarnation()
        days(dated, journal, 3, keep_s=DAY_S)
    argv = ["journal", "compact", "--state-dir", str(dated.path.parent), "--days", "5"]
    with InstanceLock.acquire(dated.path.parent):
        assert main(argv) == ExitCode.ALREADY_RUNNING
    assert "BFT-1102" in capsys.readouterr().err
    assert main(argv) == 0
    removed = int(capsys.readouterr().out.split()[0])
    assert removed > 15
    assert main(["journal", "verify", str(dated.path)]) == 0
    assert "all are as they were written" in capsys.readouterr().out
    dated.change("UPDATE entries SET at_s = at_s + 1 WHERE seq = (SELECT min(seq) FROM entries)")
    assert main(["journal", "verify", str(dated.path)]) != 0
    assert "BFT-2205" in capsys.readouterr().err
