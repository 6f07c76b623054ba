"""Long parts of trainers' specs are in the journal once, whatever refers to them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.journal import Journal, projection
from bftrainer.journal.backlog import Backlog, EntryDraft
from bftrainer.journal.texts import LONG_CHARS, REFERENCE, apart, references, whole
from bftrainer.model.canonical import parse, text_of, to_plain
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from milp.problem import Curve
from tests.support.examples import examples

LONG = (("KEY", "value of many letters" * 100), ("OTHER", "é"))
SPEC = TrainerSpec(name="n", user="ann", script="/s.py", environment=LONG)
OTHER_PART = "another value" * 200


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal.open(path, clock=lambda: 1000.0) as opened:
        yield opened


@contextlib.contextmanager
def changed(path: Path) -> Iterator[sa.Connection]:
    """Change the file behind the journal's back."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def texts(path: Path) -> int:
    with changed(path) as connection:
        return len(connection.execute(sa.select(projection.texts)).all())


def test_an_environment_is_written_once_and_read_with_every_entry(
    journal: Journal, path: Path
) -> None:
    records = journal.submit_all([(SPEC, ()), (replace(SPEC, name="m"), ())], 5.0)
    cancelled = [replace(record, state=TrainerState.CANCELLED) for record in records]
    journal.note("cancelled", {}, trainers=cancelled)
    assert texts(path) == 1
    assert path.read_bytes().count(b"of many letters" * 10) < 20, "no page has another copy"
    assert journal.trainers() == tuple(cancelled)
    assert [entry.trainers for entry in journal.entries()] == [records, tuple(cancelled)]
    assert journal.verify() == 2


def test_after_a_restart_and_a_checkpoint_trainers_are_whole(journal: Journal, path: Path) -> None:
    [record] = journal.submit_all([(SPEC, ())], 5.0)
    journal.checkpoint(-math.inf)
    journal.close()
    with Journal.open(path, clock=lambda: 1000.0) as again:
        assert again.trainers() == (record,)
        assert again.verify() == 2


def test_a_text_goes_with_the_last_trainer_that_has_it_and_entries_are_read_without(
    journal: Journal, path: Path
) -> None:
    other = replace(SPEC, environment=(("KEY", OTHER_PART),))
    first, second = journal.submit_all([(SPEC, ()), (other, ())], 5.0)
    ended = replace(first, state=TrainerState.CANCELLED, ended_s=6.0)
    journal.note("cancelled", {}, trainers=[ended])
    assert texts(path) == 2
    journal.checkpoint(ended_before_s=7.0)
    assert texts(path) == 1
    assert journal.trainers() == (second,)
    [submitted, _, _] = journal.entries()
    assert submitted.trainers == (replace(first, spec=replace(SPEC, environment=())), second)
    assert journal.verify() == 3


def test_a_journal_of_an_earlier_release_has_no_texts_and_is_read(path: Path) -> None:
    short = replace(SPEC, environment=(("A", "b"),))
    with Journal.open(path, clock=lambda: 1000.0) as journal:
        record = journal.submit(short, 5.0)
    with changed(path) as connection:
        connection.execute(sa.text("DROP TABLE texts"))
        [row] = connection.execute(sa.select(projection.trainers.c.record)).scalars()
    assert row == text_of(to_plain(record)), "what is short is written as before"
    with Journal.open(path, clock=lambda: 1000.0) as journal:
        assert journal.trainers() == (record,)
        second = journal.submit(SPEC, 6.0)
        assert journal.trainers() == (record, second)
        assert journal.verify() == 2


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("UPDATE texts SET text = replace(text, 'value', 'volue')", "checksum of the text"),
        ("DELETE FROM texts", "is missing"),
    ],
)
def test_a_text_that_is_damaged_or_gone_is_no_smaller_environment(
    damage: str, why: str, path: Path
) -> None:
    with Journal.open(path, clock=lambda: 1000.0) as journal:
        journal.submit(SPEC, 5.0)
    with changed(path) as connection:
        connection.execute(sa.text(damage))
    with pytest.raises(BftError, match=why) as caught:
        Journal.open(path, clock=lambda: 1000.0)
    assert caught.value.code == "BFT-2205"
    with Journal.open(path, clock=lambda: 1000.0, is_verified=False) as journal:
        [record] = journal.trainers()
    if "DELETE" in damage:
        assert record.state is TrainerState.FAILED
        assert record.reason.startswith("BFT-1028")


def test_what_waits_for_the_disk_keeps_its_texts() -> None:
    record = TrainerRecord(trainer_id="t1", spec=SPEC, state=TrainerState.QUEUED, submitted_s=0.0)
    waiting, later = Backlog(), Backlog()
    later.add(EntryDraft.of("changed", {}, [record]))
    waiting.follow(later)
    draft = waiting.draft()
    [written] = draft.trainers
    assert whole(parse(written), draft.texts.get) == to_plain(record)
    waiting.written()
    assert not waiting.texts


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=2 * LONG_CHARS)), max_size=3),
    st.lists(st.sampled_from([f'{{"{REFERENCE}":"{"a" * 64}"}}', "x", "y" * LONG_CHARS])),
)
def test_any_record_is_read_as_it_was(environment: list[tuple[str, str]], args: list[str]) -> None:
    points = tuple(range(1, 400))
    spec = replace(
        SPEC, environment=tuple(environment), args=tuple(args),
        curve=Curve(sizes=points, samples_per_s=tuple(map(float, points))),
    )  # fmt: skip
    record = TrainerRecord(trainer_id="t1", spec=spec, state=TrainerState.QUEUED, submitted_s=0.0)
    kept: dict[str, str] = {}
    written = text_of(apart(to_plain(record), kept))
    assert references(written) == kept.keys()
    assert kept, "the curve is long"
    assert whole(parse(written), kept.get) == to_plain(record)
