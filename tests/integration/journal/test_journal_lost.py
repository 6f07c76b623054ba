"""A journal that is whole, but not all of it: its start says what is missing."""

from __future__ import annotations

import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bftrainer.batch.process import run
from bftrainer.cli.main import cli
from bftrainer.journal import Journal
from bftrainer.journal.backup import back_up, restore
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerSpec

# Writes until it kills itself at the COUNTth time that it comes to PLACE.
WRITER = """
import os, signal, sys, time
from pathlib import Path
from bftrainer.journal import Journal, PilotRecord
from bftrainer.model.trainer import TrainerSpec
state, place, left = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])

def die_at(name):
    global left
    if name == place:
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

def watched(name, real):
    def call(*arguments):
        die_at("before-" + name)
        if name == "pwrite" and place == "half-pwrite":
            real(arguments[0], arguments[1][:70], arguments[2])
            die_at("half-pwrite")
        result = real(*arguments)
        die_at("after-" + name)
        return result
    return call

for name in ("pwrite", "fdatasync", "rename", "fsync"):
    setattr(os, name, watched(name, getattr(os, name)))
with Journal.open(state / "journal.db", clock=time.time, mark_file=state / "journal.mark") as one:
    one.begin_incarnation()
    while True:
        trainer = one.submit(TrainerSpec(name="a", user="ada", script="/a.py"), 1.0)
        [pilot_id] = one.next_pilot_ids(1)
        pilot = PilotRecord(
            pilot_id=pilot_id, node="n1", job_id=None, public_key="k", requested_s=1.0,
            time_limit_s=60.0, owner="ada",
        )
        one.append("launch", {}, pilots=[pilot])
        print(trainer.trainer_id, pilot_id, flush=True)
        die_at("acknowledged")
"""


def open_journal(state: Path, accepted_loss: int | None = None) -> Journal:
    return Journal.open(
        state / "journal.db",
        clock=time.time,
        mark_file=state / "journal.mark",
        accepted_loss=accepted_loss,
    )


def killed(state: Path, place: str, count: int) -> list[tuple[str, str]]:
    """Run a writer until it dies; return the trainers and pilots that it was given."""
    state.mkdir(exist_ok=True)
    done = run([sys.executable, "-c", WRITER, str(state), place, str(count)], timeout_s=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return [(one, two) for one, two in map(str.split, done.stdout.splitlines())]


@pytest.mark.parametrize(
    "place",
    [
        "acknowledged",
        *(
            pytest.param(place, marks=pytest.mark.long)
            for place in (
                *("before-pwrite", "half-pwrite", "after-pwrite"),
                *("before-fdatasync", "after-fdatasync"),
            )
        ),
    ],
)
def test_a_kill_at_any_point_is_no_loss(tmp_path: Path, place: str) -> None:
    state = tmp_path / "state"
    given: list[tuple[str, str]] = []
    for count in (1, 4, 9, 14):
        given += killed(state, place, count)
        with open_journal(state) as journal:
            known = {t.trainer_id for t in journal.trainers()}
            assert {trainer for trainer, _ in given} <= known
    assert len({pilot for _, pilot in given}) == len(given) > 8


@pytest.mark.parametrize(
    "place",
    [
        "before-rename",
        *(pytest.param(p, marks=pytest.mark.long) for p in ("before-fsync", "after-rename")),
    ],
)
def test_a_kill_while_the_first_mark_is_made_is_no_loss(tmp_path: Path, place: str) -> None:
    state = tmp_path / "state"
    with Journal.open(state / "journal.db", clock=time.time):
        pass  # of a release that had no mark
    killed(state, place, 0)
    given = killed(state, "acknowledged", 3)
    with open_journal(state) as journal:
        assert {t.trainer_id for t in journal.trainers()} >= {trainer for trainer, _ in given}


def test_every_damage_to_the_log_is_found_and_what_is_missing_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    given = killed(state, "acknowledged", 20)
    log = (state / "journal.db-wal").read_bytes()
    chance = random.Random(120)  # noqa: S311 - repeatable on purpose
    places = [chance.randrange(len(log) * 8) for _ in range(40)]
    cuts = [chance.randrange(len(log)) for _ in range(10)]
    damaged = [bytes(_flipped(log, place)) for place in places] + [log[:cut] for cut in cuts]
    found = 0
    for number, bad in enumerate(damaged):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(state, copy)
        (copy / "journal.db-shm").unlink()  # as after a power failure
        (copy / "journal.db-wal").write_bytes(bad)
        problem = _problem_of(copy, [trainer for trainer, _ in given])
        if problem is not None:
            found += 1
            assert problem.code in {"BFT-2213", "BFT-2202"}, str(problem)
            assert (copy / "journal.db-wal").read_bytes() == bad  # kept for inspection
            if problem.code == "BFT-2213" and "has lost its last" in problem.cause:
                assert "t21" in problem.cause or "p000021" in problem.cause
        shutil.rmtree(copy)
    assert found >= 45  # a few bits are in frames that a later one replaces


READERS = (
    ("journal", "verify", "{journal}"),
    ("replay", "{journal}"),
    ("report", "harm", "--journal", "{journal}"),
    ("account", "--journal", "{journal}"),
    ("journal", "backup", "{state}/copy", "--state-dir", "{state}"),
)


def _read(argv: tuple[str, ...], state: Path) -> Result:
    words = [word.format(journal=state / "journal.db", state=state) for word in argv]
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("argv", READERS, ids=" ".join)
def test_every_reader_refuses_a_log_that_lost_entries(
    tmp_path: Path, argv: tuple[str, ...]
) -> None:
    """Failed before: all of them opened it, with fewer trainers, and said nothing."""
    state = tmp_path / "state"
    killed(state, "acknowledged", 6)
    log = (state / "journal.db-wal").read_bytes()
    chance = random.Random(42)  # noqa: S311 - repeatable on purpose
    damaged = [bytes(_flipped(log, chance.randrange(len(log) * 4))) for _ in range(4)]
    for number, bad in enumerate((log, *damaged, log[: len(log) // 2])):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(state, copy)
        (copy / "journal.db-shm").unlink()
        (copy / "journal.db-wal").write_bytes(bad)
        done = _read(argv, copy)
        if bad == log:
            assert done.exit_code == 0, done.output
            continue
        problem = done.exception
        assert isinstance(problem, BftError), done.output
        assert problem.code == "BFT-2213", problem
        assert (copy / "journal.db-wal").read_bytes() == bad  # kept for inspection
        assert not list(copy.glob("copy*"))


def test_without_the_mark_verify_says_that_nothing_tells_what_is_missing(tmp_path: Path) -> None:
    """Nothing can tell: what is left is whole. Failed before: it said only that all is well."""
    state = tmp_path / "state"
    killed(state, "acknowledged", 6)
    log = (state / "journal.db-wal").read_bytes()
    (state / "journal.db-wal").write_bytes(log[: len(log) // 2])
    (state / "journal.mark").unlink()
    done = _read(READERS[0], state)
    assert done.exit_code == 0
    assert "nothing tells whether the last ones are missing" in done.output


def test_a_copy_is_compared_with_its_own_mark(tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    killed(state, "acknowledged", 2)
    back_up(state / "journal.db", copy)
    killed(state, "acknowledged", 2)
    back_up(state / "journal.db", later := tmp_path / "later")
    with Journal.open(copy, clock=time.time) as journal:  # older than the state directory's mark
        assert journal.verify() > 3
    shutil.copy(copy, later)  # not what its mark says
    with pytest.raises(BftError, match="BFT-2213"):
        Journal.open(later, clock=time.time)
    with pytest.raises(BftError, match="BFT-2213"):
        restore(later, state)


def test_a_reader_beside_a_writer_is_not_refused(tmp_path: Path) -> None:
    """The mark is read before the journal, so that it is never the newer of the two."""
    with open_journal(state := tmp_path / "state") as writer:
        writer.begin_incarnation()
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                writer.append("launch", {})

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(30):
                with Journal.open(state / "journal.db", clock=time.time) as reader:
                    assert reader.acknowledged is not None
        finally:
            over.set()
            thread.join()


def _problem_of(state: Path, trainers: list[str]) -> BftError | None:
    try:
        with open_journal(state) as journal:
            assert [t.trainer_id for t in journal.trainers()] == trainers
    except BftError as problem:
        return problem
    return None


def _flipped(data: bytes, place: int) -> bytearray:
    damaged = bytearray(data)
    damaged[place // 8] ^= 1 << place % 8
    return damaged


def test_who_accepts_the_loss_goes_on_above_every_number_given(tmp_path: Path) -> None:
    state = tmp_path / "state"
    given = killed(state, "acknowledged", 9)
    log = state / "journal.db-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    with pytest.raises(BftError, match=r"--accept-loss 21"):
        open_journal(state)
    with pytest.raises(BftError, match="BFT-2213"):
        open_journal(state, accepted_loss=20)  # another loss than this one
    with open_journal(state, accepted_loss=21) as journal:
        assert journal.begin_incarnation() == 2
        record = journal.submit(TrainerSpec(name="b", user="ada", script="/b.py"), 2.0)
        [pilot_id] = journal.next_pilot_ids(1)
        assert record.trainer_id not in {trainer for trainer, _ in given}
        assert pilot_id not in {pilot for _, pilot in given}
        last = journal.latest("start")
        assert last is not None
        assert last.payload == {"incarnation": 2, "accepted_loss": 21}
    with open_journal(state) as journal:  # nothing is to be accepted any more
        assert journal.verify() > 3


def test_a_backup_is_an_older_journal_and_named_so(tmp_path: Path) -> None:
    state = tmp_path / "state"
    killed(state, "acknowledged", 2)
    with open_journal(state):
        pass
    shutil.copy(state / "journal.db", tmp_path / "backup.db")
    given = killed(state, "acknowledged", 5)
    for file in state.glob("journal.db*"):
        file.unlink()
    shutil.copy(tmp_path / "backup.db", state / "journal.db")
    with pytest.raises(BftError) as caught:
        open_journal(state)
    assert caught.value.code == "BFT-2213"
    assert f"trainers t4 to {given[-1][0]}" in caught.value.cause
    assert "incarnations of the daemon 2" in caught.value.cause


def test_a_lost_database_is_not_begun_anew(tmp_path: Path) -> None:
    state = tmp_path / "state"
    killed(state, "acknowledged", 2)
    for file in state.glob("journal.db*"):
        file.unlink()
    with pytest.raises(BftError, match="BFT-2213"):
        open_journal(state)
    with open_journal(state, accepted_loss=7) as journal:
        assert journal.begin_incarnation() == 2
        assert journal.next_pilot_ids(2) == ["p000004", "p000005"]


def test_another_history_is_not_taken_for_ours(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    killed(ours, "acknowledged", 2)
    killed(other, "acknowledged", 5)
    shutil.copy(ours / "journal.mark", other / "journal.mark")
    with pytest.raises(BftError, match="is another one"):
        open_journal(other)


def test_a_mark_that_is_missing_or_older_is_no_complaint(tmp_path: Path) -> None:
    state = tmp_path / "state"
    killed(state, "acknowledged", 2)
    shutil.copy(state / "journal.mark", tmp_path / "old.mark")
    given = killed(state, "acknowledged", 4)
    for mark in (tmp_path / "old.mark", None):
        (state / "journal.mark").unlink()
        if mark is not None:
            shutil.copy(mark, state / "journal.mark")
        with open_journal(state) as journal:
            assert journal.trainers()[-1].trainer_id == given[-1][0]


def test_the_mark_of_a_failing_disk_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    with open_journal(state) as journal:
        journal.begin_incarnation()
        with monkeypatch.context() as patched:
            patched.setattr("os.pwrite", _fails)
            with pytest.raises(BftError, match="BFT-2207"):
                journal.append("x", {})
            journal.note("y", {})
            assert journal.last_seq("y") is None
        journal.append("z", {})
        assert [e.kind for e in journal.entries()] == ["start", "x", "caught-up", "y", "z"]
    with open_journal(state) as journal:
        assert journal.verify() == 5


def _fails(*_: object) -> int:
    raise OSError(5, "Input/output error")
