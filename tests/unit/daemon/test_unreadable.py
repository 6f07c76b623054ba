"""What another release accepted does not keep a daemon from reading its journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bftrainer.daemon.harm import backoff, ledger
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import HarmRecords, Taken
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import PilotRecord, PilotState
from bftrainer.model.trainer import TrainerRecord, TrainerState
from bftrainer.site.policy.model import SitePolicy
from milp.problem import Curve
from tests.support.generations import offer
from tests.support.other_release import newer, older
from tests.support.snapshots import T0, record


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with t1 and t3 of this release and t2 of another."""
    path = tmp_path / "journal.db"
    with Journal.open(path, clock=lambda: T0) as journal:
        journal.begin_incarnation()
        for known in (_here("t1", tmp_path), newer(_here("t2", tmp_path)), _here("t3", tmp_path)):
            journal.append("note", {}, trainers=[known])
    return path


def _here(trainer_id: str, directory: Path) -> TrainerRecord:
    plain = record(trainer_id)
    return replace(plain, spec=replace(plain.spec, cwd=str(directory)))


def _book(journal: Journal) -> TrainerBook:
    return TrainerBook(
        journal=journal,
        policy=SitePolicy(),
        incarnation=journal.begin_incarnation(),
        send=lambda _pilot, _message: True,
        clock=lambda: T0,
        on_change=lambda: None,
    )


def test_a_record_of_another_release_is_held_out_by_name_and_the_others_are_read(
    path: Path,
) -> None:
    with Journal.open(path, clock=lambda: T0) as journal:
        first, odd, last = journal.trainers()
        assert (first, last) == (_here("t1", path.parent), _here("t3", path.parent))
        assert (odd.trainer_id, odd.spec.name, odd.spec.user) == ("t2", "t2", "bob")
        assert (odd.state, odd.submitted_s) == (TrainerState.FAILED, T0)
        assert "BFT-1028" in odd.reason
        assert "unheard_of" in odd.reason
        assert [t.trainer_id for e in journal.entries("note") for t in e.trainers] == [
            "t1", "t2", "t3",
        ]  # fmt: skip


def test_the_book_opens_the_others_and_leaves_the_record_as_it_was_written(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Journal.open(path, clock=lambda: T0) as journal:
        book = _book(journal)
        assert [r.trainer_id for r in book.waiting_and_running()] == ["t1", "t3"]
        assert "trainer t2: BFT-1028" in caplog.text
        assert book.cancel("t2").state is TrainerState.FAILED
        journal.verify()
        (entry,) = [e for e in journal.entries("note") if e.trainers[0].trainer_id == "t2"]
        assert entry.seq == 3


def test_a_record_from_before_a_field_existed_is_whole_and_takes_its_default(
    tmp_path: Path,
) -> None:
    known = _here("t1", tmp_path)
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        journal.begin_incarnation()
        journal.append("note", {}, trainers=[older(known)])
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        assert journal.trainers() == (known,)


def test_what_had_ended_stays_ended(tmp_path: Path) -> None:
    over = replace(record("t1"), state=TrainerState.FINISHED)
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        journal.begin_incarnation()
        journal.append("note", {}, trainers=[newer(over)])
        (found,) = journal.trainers()
    assert found.state is TrainerState.FINISHED


def test_a_trainer_whose_runtime_is_gone_fails_by_itself(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        journal.begin_incarnation()
        gone = _here("t1", tmp_path)
        gone = replace(gone, spec=replace(gone.spec, runtime="gone"))
        journal.append("note", {}, trainers=[gone])
        journal.append("note", {}, trainers=[_here("t2", tmp_path)])
        book = _book(journal)
        book.set_targets({"t1": [offer("n1")], "t2": [offer("n2")]})
        assert book.records["t1"].state is TrainerState.FAILED
        assert "BFT-1304" in book.records["t1"].reason
        assert book.trainers["t2"].machine.crew.workers


def test_numbers_beyond_arithmetic_are_read_and_opened(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        journal.begin_incarnation()
        odd = _here("t1", tmp_path)
        curve = Curve(sizes=(10**400,), samples_per_s=(1.0,))
        journal.append("note", {}, trainers=[replace(odd, spec=replace(odd.spec, curve=curve))])
        assert len(_book(journal).waiting_and_running()) == 1


PILOT = PilotRecord(
    pilot_id="p000001",
    node="n1",
    job_id="7",
    public_key="k",
    requested_s=T0,
    time_limit_s=60.0,
    owner="ada",
    state=PilotState.RUNNING,
    reason="It runs.",
)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (newer(PILOT), PILOT),
        (older(PILOT, "reason"), replace(PILOT, reason="")),
        (older(PILOT, "time_limit_s"), replace(PILOT, time_limit_s=0.0)),
    ],
    ids=["newer", "older", "much older"],
)
def test_a_pilot_of_another_release_is_whole_and_counts_as_far_as_it_can_be_read(
    tmp_path: Path, written: PilotRecord, read: PilotRecord
) -> None:
    other = replace(PILOT, pilot_id="p000002", node="n2")
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        journal.begin_incarnation()
        journal.append("note", {}, pilots=[written, other])
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        assert journal.pilots(active_only=True) == (read, other)
        assert [e.pilots for e in journal.entries("note")] == [(read, other)]


def test_what_the_harm_monitor_of_another_release_wrote_does_not_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    taken = HarmRecords(taken=(Taken(node="n1", pilot_id="p000001", ended_s=T0, settled_s=T0),))
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        journal.begin_incarnation()
        for found in (newer(taken), taken, newer(taken)):
            journal.append(ledger.KIND, found)
        journal.append(backoff.KIND, newer(BackOff(level=2, base_nodes=4)))
        monitor = HarmMonitor(journal, SitePolicy(), lambda: T0)
        assert monitor.state == BackOff()
        assert monitor.report(None).taken == 1
    assert caplog.text.count("2 hand-over records of another release") == 1
