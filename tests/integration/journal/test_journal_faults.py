"""What the journal does when its process is killed, its file damaged, its disk full."""

from __future__ import annotations

import os
import random
import selectors
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from bftrainer.batch.process import Completed, kill_group, run, spawn
from bftrainer.journal import Journal, PilotRecord
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec

WRITER = """
import sys, time
from bftrainer.journal import Journal, PilotRecord
with Journal.open(sys.argv[1], clock=time.time) as journal:
    print("incarnation", journal.begin_incarnation(), flush=True)
    while True:
        [pilot_id] = journal.next_pilot_ids(1)
        pilot = PilotRecord(
            pilot_id=pilot_id, node="n1", job_id=None, public_key="k", requested_s=1.0,
            time_limit_s=60.0, owner="ada",
        )
        seq = journal.append("launch", {"fill": "x" * 500}, pilots=[pilot])
        print("launch", seq, pilot_id, flush=True)
"""


def filled(path: Path, count: int = 30) -> None:
    """Write a journal with every kind of row."""
    with Journal.open(path, clock=lambda: 1000.5) as journal:
        journal.begin_incarnation()
        record = journal.submit(TrainerSpec(name="a", user="ada", script="/a.py"), 1.0)
        for number in range(count):
            pilot = PilotRecord(
                pilot_id=journal.next_pilot_ids(1)[0],
                node="n1",
                job_id=str(number),
                public_key="k",
                requested_s=1.0,
                time_limit_s=60.0,
                owner="ada",
            )
            journal.append("launch", {"n": number, "x": "y" * 200}, pilots=[pilot])
        journal.append("note", {}, trainers=[record])


def content(path: Path) -> tuple[tuple[str, ...], tuple[TrainerRecord, ...], tuple[object, ...]]:
    with Journal.open(path, clock=lambda: 0.0) as journal:
        return (
            tuple(entry.sha256 for entry in journal.entries()),
            journal.trainers(),
            journal.pilots(),
        )


def acknowledged(path: Path, enough: int) -> list[list[str]]:
    """Run a writer, SIGKILL it after ``enough`` acknowledgements, return all it gave."""
    reader, writer = os.pipe()
    try:
        child = spawn([sys.executable, "-c", WRITER, str(path)], stdout=writer)
    finally:
        os.close(writer)
    received = b""
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(reader, selectors.EVENT_READ)
            deadline = time.monotonic() + 60
            while received.count(b"\n") < enough:
                assert selector.select(max(0.0, deadline - time.monotonic())), "no answer in 60 s"
                chunk = os.read(reader, 65536)
                assert chunk, "the writer ended by itself"
                received += chunk
    finally:
        kill_group(child.pid)
        child.wait()
        while chunk := os.read(reader, 65536):
            received += chunk
        os.close(reader)
    complete = received[: received.rfind(b"\n") + 1]
    return [line.split() for line in complete.decode().splitlines()]


def test_sigkill_at_any_moment_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    chance = random.Random(2106)  # noqa: S311 - repeatable on purpose
    seen: list[str] = []
    for attempt in range(1, 11):
        lines = acknowledged(path, enough=chance.randint(2, 60))
        assert lines[0] == ["incarnation", str(attempt)]
        with Journal.open(path, clock=time.time) as journal:
            assert journal.incarnation == attempt
            launched = {
                entry.seq: entry.pilots[0].pilot_id for entry in journal.entries(kind="launch")
            }
            for _, seq, pilot_id in lines[1:]:
                assert launched[int(seq)] == pilot_id
                assert pilot_id not in seen
                seen.append(pilot_id)
            assert {pilot.pilot_id for pilot in journal.pilots()} == set(launched.values())
    assert len(seen) == len(set(seen)) > 10


def test_one_flipped_bit_is_found_or_changes_nothing(tmp_path: Path) -> None:
    original = tmp_path / "original.db"
    filled(original)
    before = content(original)
    data = original.read_bytes()
    chance = random.Random(1)  # noqa: S311 - repeatable on purpose
    found = set()
    for _ in range(150):
        place = chance.randrange(len(data) * 8)
        damaged = bytearray(data)
        damaged[place // 8] ^= 1 << place % 8
        path = tmp_path / "damaged.db"
        path.write_bytes(damaged)
        try:
            assert content(path) == before, f"bit {place}"
        except BftError as problem:
            found.add(problem.code)
        for file in tmp_path.glob("damaged.db*"):
            file.unlink()
    assert {"BFT-2202", "BFT-2205"} <= found
    assert found <= {"BFT-2202", "BFT-2203", "BFT-2205"}


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("UPDATE entries SET payload = replace(payload, 'y', 'z') WHERE seq = 4", "entry 4"),
        ("UPDATE entries SET at_s = at_s + 1 WHERE seq = 7", "entry 7"),
        ("UPDATE entries SET kind = 'other' WHERE seq = 7", "entry 7"),
        ("UPDATE entries SET incarnation = 2 WHERE seq = 7", "entry 7"),
        ("UPDATE entries SET pilots = '[]' WHERE seq = 6", "entry 6"),
        ("DELETE FROM entries WHERE seq = 9", "entry 9 is missing"),
        ("DELETE FROM entries WHERE seq > 32", "not the one written last"),
        ("UPDATE meta SET value = '7' WHERE key = 'incarnation'", "not the one written last"),
        ("UPDATE meta SET value = '1' WHERE key = 'last_pilot'", "not the one written last"),
        ("DELETE FROM trainers", "the state of t1"),
        ("UPDATE pilots SET state = 'ended' WHERE ordinal = 4", "the state of p000004"),
        ("UPDATE pilots SET record = '{}' WHERE ordinal = 4", "the state of p000004"),
    ],
)
def test_a_change_behind_its_back_is_found_and_named(
    tmp_path: Path, statement: str, cause: str
) -> None:
    path = tmp_path / "journal.db"
    filled(path)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
    with pytest.raises(BftError) as caught:
        Journal.open(path, clock=time.time)
    assert caught.value.code == "BFT-2205"
    assert cause in caught.value.cause
    assert f"mv {path} {path}.damaged" in caught.value.next_step


@pytest.mark.parametrize("statement", ["DELETE FROM meta", "DROP TABLE pilots"])
def test_missing_tables_or_counters_are_damage(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "journal.db"
    filled(path, count=1)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
    with pytest.raises(BftError) as caught:
        Journal.open(path, clock=time.time)
    assert caught.value.code == "BFT-2202"


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    original = tmp_path / "original.db"
    filled(original)
    data = original.read_bytes()
    for keep in (0, 1, 50, 99, 100, 4095, 4096, 8192, len(data) // 2, len(data) - 1):
        path = tmp_path / f"short{keep}.db"
        path.write_bytes(data[:keep])
        with pytest.raises(BftError) as caught:
            Journal.open(path, clock=time.time)
        # A page that is only partly there may be read as if its end were zeros.
        codes = {"BFT-2202"} if keep < len(data) - 1 else {"BFT-2202", "BFT-2205"}
        assert caught.value.code in codes, keep
        assert str(path) in caught.value.cause
        assert path.read_bytes() == data[:keep]  # kept for inspection


def test_a_log_cut_at_any_byte_of_its_end_leaves_a_whole_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal.open(path, clock=time.time) as journal:
        for number in range(5):
            journal.append("x", {"n": number})
        log = path.with_name("journal.db-wal")
        before_last = log.stat().st_size
        journal.append("x", {"n": 5})
        main, tail = path.read_bytes(), log.read_bytes()
    assert before_last < len(tail)
    cut = tmp_path / "cut.db"
    for keep in [*range(before_last, len(tail), 331), len(tail) - 1, len(tail)]:
        cut.write_bytes(main)
        cut.with_name("cut.db-wal").write_bytes(tail[:keep])
        with Journal.open(cut, clock=time.time) as journal:
            assert journal.verify() == (6 if keep == len(tail) else 5), keep
        cut.unlink()


def test_a_lost_file_with_its_log_still_there_is_not_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.with_name("journal.db-wal").write_bytes(b"x" * 4096)
    with pytest.raises(BftError) as caught:
        Journal.open(path, clock=time.time)
    assert caught.value.code == "BFT-2202"
    assert not path.exists()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_text("not a database, but long enough to be taken for one\n" * 100)
    with pytest.raises(BftError) as caught:
        Journal.open(path, clock=time.time)
    assert caught.value.code == "BFT-2202"
    path.unlink()
    path.mkdir()
    with pytest.raises(BftError) as caught:
        Journal.open(path, clock=time.time)
    assert caught.value.code == "BFT-2206"


def test_what_a_killed_creation_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / ".journal.db.new").write_bytes(b"half")
    (tmp_path / ".journal.db.new-wal").write_bytes(b"half")
    with Journal.open(tmp_path / "journal.db", clock=time.time) as journal:
        journal.append("x", {})
    assert [file.name for file in tmp_path.iterdir()] == ["journal.db"]


def test_a_full_disk_is_named_and_writing_goes_on_when_there_is_space(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db", clock=time.time) as journal:
        engine = journal._database.engine  # type: ignore[union-attr]  # it is open
        journal.append("x", {})

        def limit(pages: int) -> None:
            with engine.connect() as connection:
                connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        limit(1)  # SQLite itself then answers SQLITE_FULL, as it does for ENOSPC
        with pytest.raises(BftError) as caught:
            journal.append("x", {"fill": "x" * 100_000})
        assert caught.value.code == "BFT-2201"
        assert journal.verify() == 1
        limit(1_000_000)
        assert journal.append("x", {"fill": "x" * 100_000}) == 2
        assert journal.verify() == 2


def test_a_read_only_journal_is_named(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db", clock=time.time) as journal:
        engine = journal._database.engine  # type: ignore[union-attr]  # it is open
        with engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA query_only=ON")
        with pytest.raises(BftError) as caught:
            journal.append("x", {})
        assert caught.value.code == "BFT-2206"


def test_a_write_that_the_kernel_refuses_is_named(tmp_path: Path) -> None:
    script = """
import resource, sys, time
from bftrainer.model.errors import BftError
from bftrainer.journal import Journal
with Journal.open(sys.argv[1], clock=time.time) as journal:
    journal.append("x", {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        journal.append("x", {"fill": "x" * 1_000_000})
    except BftError as problem:
        print(problem.code)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(journal.append("x", {}), journal.verify())
"""
    done = python(script, tmp_path / "journal.db")
    assert done.stdout.split() == ["BFT-2207", "2", "2"], done.stderr


def test_a_journal_locked_by_another_process_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bftrainer.journal import database

    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    path = tmp_path / "journal.db"
    with Journal.open(path, clock=time.time) as journal:
        engine = sa.create_engine(f"sqlite:///{path}")
        with engine.connect() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            with pytest.raises(BftError) as caught:
                journal.append("x", {})
        engine.dispose()
        assert caught.value.code == "BFT-2208"
        assert journal.append("x", {}) == 1


@pytest.fixture
def as_nobody(tmp_path: Path) -> Iterator[Path]:
    """Yield a directory that an ordinary user may read but not write."""
    if os.geteuid() != 0:
        tmp_path.chmod(0o555)
        yield tmp_path
        tmp_path.chmod(0o755)
        return
    place = Path("/tmp") / f"bft-journal-{os.getpid()}"
    place.mkdir(mode=0o755)
    yield place
    shutil.rmtree(place)


def test_a_directory_without_permission_is_named(as_nobody: Path) -> None:
    script = """
import os, sys, time
from bftrainer.model.errors import BftError
from bftrainer.journal import Journal

if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    Journal.open(sys.argv[1], clock=time.time)
except BftError as problem:
    print(problem.code, int(problem.exit_code))
"""
    done = python(script, as_nobody / "journal.db")
    assert done.stdout.split() == ["BFT-2206", "5"], done.stderr
    done = python(script, as_nobody / "deeper" / "journal.db")
    assert done.stdout.split() == ["BFT-2206", "5"], done.stderr


def python(script: str, path: Path) -> Completed:
    return run([sys.executable, "-c", script, str(path)], timeout_s=60)
