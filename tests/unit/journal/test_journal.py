"""The journal: what was acknowledged stays, in order, and adds up to the tables."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bftrainer.journal import Journal, PilotRecord, PilotState, projection, tables
from bftrainer.journal.backlog import EntryDraft
from bftrainer.model.canonical import CanonicalError
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from milp.problem import Curve
from tests.support.values import trainer_records


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    nodes: tuple[str, ...]
    t_fwd_s: float


def spec(name: str = "net") -> TrainerSpec:
    return TrainerSpec(
        name=name,
        user="ada",
        script="/home/ada/train.py",
        n_max=8,
        curve=Curve(sizes=(1, 8), samples_per_s=(10.0, 60.0)),
    )


def pilot(number: int, **changes: object) -> PilotRecord:
    made = PilotRecord(
        pilot_id=f"p{number:06d}",
        node=f"n{number}",
        job_id=None,
        public_key="k" * 40,
        requested_s=5.0,
        time_limit_s=600.0,
        owner="ada",
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # field names come from the tests


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


def test_what_was_written_is_there_after_a_restart(path: Path) -> None:
    decision = Decision(nodes=("n1", "n2"), t_fwd_s=120)
    with Journal.open(path, clock=Clock()) as journal:
        assert journal.begin_incarnation() == 1
        first = journal.submit(spec("first"), 17.0)
        second = journal.submit(spec("second"), 18.0)
        running = replace(first, state=TrainerState.RUNNING, started_s=20.0, rescales=1)
        asked = pilot(1, job_id="77")
        seq = journal.append("decision", decision, trainers=[running], pilots=[asked])
        assert seq == 4
    with Journal.open(path, clock=Clock()) as journal:
        assert journal.incarnation == 1
        assert journal.trainers() == (running, second)
        assert second.state is TrainerState.QUEUED
        assert (second.trainer_id, second.submitted_s) == ("t2", 18.0)
        assert journal.pilots() == (asked,)
        entries = list(journal.entries())
        assert [entry.kind for entry in entries] == ["start", "submit", "submit", "decision"]
        assert [entry.seq for entry in entries] == [1, 2, 3, 4]
        assert entries[-1].payload_as(Decision) == decision
        assert entries[-1].payload == {"type": "Decision", "nodes": ["n1", "n2"], "t_fwd_s": 120.0}
        assert entries[-1].trainers == (running,)
        assert entries[-1].pilots == (asked,)
        assert (entries[-1].incarnation, entries[-1].at_s) == (1, 1004.0)
        assert journal.verify() == 4


def test_the_file_is_private_durable_and_alone_after_closing(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        engine = journal._database.engine  # type: ignore[union-attr]  # it is open
        with engine.connect() as connection:
            pragmas = {
                name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
                for name in ("journal_mode", "synchronous", "foreign_keys")
            }
        assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
        journal.append("note", {})
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["journal.db"]


def test_every_start_has_a_greater_incarnation(path: Path) -> None:
    for expected in (1, 2, 3):
        with Journal.open(path, clock=Clock()) as journal:
            assert journal.begin_incarnation() == expected


def test_pilot_ids_and_trainer_ids_are_never_given_twice(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        assert journal.next_pilot_ids(2) == ["p000001", "p000002"]
        assert journal.next_pilot_ids(1) == ["p000003"]  # the first two are nowhere written yet
        journal.append("x", {}, pilots=[pilot(3)])
        journal.submit(spec(), 1.0)
    with Journal.open(path, clock=Clock()) as journal:
        assert journal.next_pilot_ids(1) == ["p000004"]
        assert journal.next_pilot_ids(1, above=70) == ["p000071"]
        journal.append("adopted", {}, pilots=[pilot(1_000_000)])
        assert journal.next_pilot_ids(1) == ["p1000001"]
        assert journal.submit(spec(), 2.0).trainer_id == "t2"
        for _ in range(10):
            last = journal.submit(spec(), 3.0)
        assert [record.trainer_id for record in journal.trainers()][-1] == last.trainer_id == "t12"


def test_pilots_can_be_read_without_those_that_ended(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        states = list(PilotState)
        journal.append("x", {}, pilots=[pilot(n, state=s) for n, s in enumerate(states, 1)])
        journal.append("x", {}, pilots=[pilot(1, state=PilotState.ENDED, ended_s=9.0, reason="r")])
        assert [p.pilot_id for p in journal.pilots()] == [
            "p000001",
            "p000002",
            "p000003",
            "p000004",
        ]
        assert [p.state for p in journal.pilots(active_only=True)] == ["running", "cancelled"]
        assert journal.pilots()[0].ended_s == 9.0


def test_entries_can_be_filtered_and_paged(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        for number in range(600):  # more than two pages
            journal.append("even" if number % 2 == 0 else "odd", {"n": number})
        assert [e.payload["n"] for e in journal.entries()] == list(range(600))
        assert [e.payload["n"] for e in journal.entries(kind="odd", after_seq=590)] == [
            591, 593, 595, 597, 599,
        ]  # fmt: skip
        assert len(list(journal.entries(limit=300))) == 300
        assert [e.seq for e in journal.entries(after_seq=5, limit=2)] == [6, 7]
        assert list(journal.entries(limit=0)) == []


def test_a_daemon_that_was_replaced_can_write_no_more(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as old, Journal.open(path, clock=Clock()) as new:
        old.begin_incarnation()
        old.append("note", {})
        new.begin_incarnation()
        for act in (
            lambda: old.append("note", {}),
            lambda: old.submit(spec(), 1.0),
            lambda: old.note("note", {}),
        ):
            with pytest.raises(BftError) as caught:
                act()
            assert caught.value.code == "BFT-2209"
            assert caught.value.exit_code is ExitCode.ALREADY_RUNNING
        assert new.append("note", {}) == 4
        assert new.verify() == 4


def test_a_reader_beside_the_daemon_never_makes_it_wait(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as daemon:
        daemon.append("x", {"n": 1})
        writing = daemon._transaction()
        with writing as connection:  # the daemon holds the write lock for a long time
            daemon._write(connection, EntryDraft.of("x", {"n": 2}))
            with Journal.open(path, clock=Clock()) as reader:
                assert [entry.payload for entry in reader.entries()] == [{"n": 1}]
                assert reader.trainers() == ()
        with Journal.open(path, clock=Clock()) as reader:
            reading = reader._transaction(is_reading=True)
            with reading as connection:
                assert tables.meta_of(connection, "").head_seq == 2
                assert daemon.append("x", {"n": 3}) == 3
                assert tables.meta_of(connection, "").head_seq == 2  # one state throughout
            assert reader.verify() == 3


def test_a_refused_entry_leaves_nothing(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        record = journal.submit(spec(), 1.0)
        with pytest.raises(CanonicalError):
            journal.append("decision", {"x": float("nan")})
        with pytest.raises(CanonicalError):
            journal.append("decision", {}, trainers=[replace(record, submitted_s=float("inf"))])
        for kind in ("start", "submit", "pilot-id", "caught-up", "checkpoint", "", "Bad", "a b"):
            with pytest.raises(ValueError, match="cannot be the kind"):
                journal.append(kind, {})
        with pytest.raises(ValueError, match="not a trainer id"):
            journal.append("x", {}, trainers=[replace(record, trainer_id="t01")])
        assert journal.verify() == 1
        assert journal.trainers() == (record,)


def test_a_pilot_needs_an_id_from_the_numbering() -> None:
    for wrong in ("1", "p1", "p00001x", "q000001", "p000001\n"):
        with pytest.raises(ValueError, match="not a pilot id"):
            pilot(1, pilot_id=wrong)


def test_text_that_databases_refuse_survives(path: Path) -> None:
    odd = "n\0ul, half a pair \ud800 and ünïcode"
    with Journal.open(path, clock=Clock()) as journal:
        record = journal.submit(spec(odd), 1.0)
        journal.append("x", {odd: odd}, pilots=[pilot(1, node=odd, reason=odd, job_id=odd)])
    with Journal.open(path, clock=Clock()) as journal:
        assert journal.trainers() == (record,)
        assert journal.pilots()[0].reason == odd
        assert next(iter(journal.entries(kind="x"))).payload == {odd: odd}


def test_a_closed_journal_is_not_quietly_opened_again(path: Path) -> None:
    journal = Journal.open(path, clock=Clock())
    journal.close()
    journal.close()
    with pytest.raises(RuntimeError, match="closed"):
        journal.append("x", {})


def test_threads_may_write_at_once(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        ids: list[str] = []

        def work() -> None:
            for _ in range(25):
                ids.extend(journal.next_pilot_ids(1))
                journal.append("x", {"id": ids[-1]})

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(ids)) == 100
        assert journal.verify() == 100


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(trainer_records(), max_size=2)),
        st.tuples(
            st.just("pilot"),
            st.lists(
                st.builds(
                    pilot,
                    st.integers(1, 5),
                    state=st.sampled_from(PilotState),
                    job_id=st.none() | st.text(max_size=3),
                    ended_s=st.none() | st.floats(0, 1e9),
                ),
                max_size=2,
            ),
        ),
        st.just(("submit", [])),
        st.just(("checkpoint", [])),
        st.just(("start", [])),
    ),
    max_size=8,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_steps)
def test_the_tables_are_what_the_entries_add_up_to(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, list[object]]]
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    trainers: dict[str, TrainerRecord] = {}
    pilots: dict[str, PilotRecord] = {}
    with Journal.open(path, clock=Clock()) as journal:
        for step, records in steps:
            if step == "append":
                some = [record for record in records if isinstance(record, TrainerRecord)]
                journal.append("x", {}, trainers=some)
                trainers |= {record.trainer_id: record for record in some}
            elif step == "pilot":
                few = [record for record in records if isinstance(record, PilotRecord)]
                journal.append("x", {}, pilots=few)
                pilots |= {record.pilot_id: record for record in few}
            elif step == "submit":
                made = journal.submit(spec(), 1.0)
                assert made.trainer_id not in trainers
                trainers[made.trainer_id] = made
            elif step == "checkpoint":
                journal.checkpoint(-math.inf)
                pilots = {i: p for i, p in pilots.items() if p.state is not PilotState.ENDED}
            else:
                journal.begin_incarnation()
        assert pilots.keys().isdisjoint(journal.next_pilot_ids(1))
        assert journal.verify() == len(steps)
        assert {t.trainer_id: t for t in journal.trainers()} == trainers
        assert {p.pilot_id: p for p in journal.pilots()} == pilots
    with Journal.open(path, clock=Clock()) as journal:
        assert {t.trainer_id: t for t in journal.trainers()} == trainers


def test_a_journal_of_an_earlier_schema_is_brought_up_to_date(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        journal.append("x", {})
        engine = journal._database.engine  # type: ignore[union-attr]  # it is open
        with engine.begin() as connection:
            new = _schema(connection)
            connection.execute(sa.text("DROP INDEX ix_trainers_seq"))
            connection.execute(sa.text("DROP INDEX ix_pilots_seq"))
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '0001'"))
    with Journal.open(path, clock=Clock()) as journal:
        assert journal.append("x", {}) == 2
        engine = journal._database.engine  # type: ignore[union-attr]  # it is open
        with engine.begin() as connection:
            assert _schema(connection) == new
            version = connection.execute(sa.select(projection.version)).scalar()
            assert version == projection.HEAD_REVISION


def _schema(connection: sa.Connection) -> list[str]:
    found = sa.inspect(connection)
    tables = sorted(found.get_table_names())
    return [
        str([name, found.get_columns(name), sorted(map(str, found.get_indexes(name)))])
        for name in tables
    ]


def test_a_journal_of_a_newer_release_is_refused(path: Path) -> None:
    with Journal.open(path, clock=Clock()) as journal:
        journal.append("x", {})
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    before = path.read_bytes()
    with pytest.raises(BftError) as caught:
        Journal.open(path, clock=Clock())
    assert caught.value.code == "BFT-2203"
    assert "'9999'" in caught.value.cause
    assert path.read_bytes() == before


def test_the_schema_is_valid_for_postgresql_too() -> None:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateTable

    for table in projection.metadata.sorted_tables:
        text = str(CreateTable(table).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]  # SQLAlchemy's own
        assert "INTEGER" not in text.replace("BIGINT", "")  # 64 bits everywhere


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "mysql://host/db",
        "://",
        "postgresql+nosuchdriver://user@host/db",
    ],
)
def test_a_url_we_cannot_use_is_refused(url: str) -> None:
    with pytest.raises(BftError) as caught:
        Journal.open(url, clock=Clock())
    assert caught.value.code == "BFT-2210"
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(BftError) as caught:
        Journal.open("mysql://ada:secret@host/db", clock=Clock())
    assert "secret" not in str(caught.value)


def test_a_sqlite_url_names_a_file(path: Path) -> None:
    path.parent.mkdir()
    with Journal.open(f"sqlite:///{path}", clock=Clock()) as journal:
        journal.append("x", {})
    with Journal.open(path, clock=Clock()) as journal:
        assert journal.verify() == 1
