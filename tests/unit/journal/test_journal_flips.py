"""A flipped bit in any page of a journal is a refusal with a code, or changes nothing."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bftrainer.cli.main import main
from bftrainer.journal.errors import JournalError
from bftrainer.journal.journal import Journal
from bftrainer.journal.mark import JOURNAL_NAME, MARK_NAME
from tests.support.flips import (
    SMALL_PAGE_BYTES,
    WAYS,
    Flipper,
    misleading,
    undecodable,
    write_journal,
)
from tests.support.snapshots import T0

SAMPLE = 15  # ``tests.support.flip_journal`` takes every byte


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small journal, with its mark."""
    state = tmp_path_factory.mktemp("original") / "state"
    return write_journal(state, page_bytes=SMALL_PAGE_BYTES)


@pytest.fixture(scope="module")
def flipper(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Flipper:
    return Flipper(original, tmp_path_factory.mktemp("damaged") / "state")


@pytest.mark.parametrize("way", WAYS)
def test_a_whole_journal_is_read_in_every_way(flipper: Flipper, way: str) -> None:
    assert flipper.unharmed(way) == "read"


def test_a_schema_that_is_no_text_is_refused_with_a_code(
    original: Path, flipper: Flipper, tmp_path: Path
) -> None:
    """Seen failing before: UnicodeDecodeError, of sqlite3's own message."""
    bits = undecodable(original, tmp_path, most=3)
    assert [flipper.flipped(bit) for bit in bits] == [[], [], []]


def test_entries_that_come_twice_instead_of_others_are_found(flipper: Flipper) -> None:
    """Seen failing before: each entry was as it was written, and some were missing."""
    bits = list(misleading(flipper.data))
    assert len(bits) > 2
    assert [flipper.flipped(bit, ["read", "verify"]) for bit in bits] == [[]] * len(bits)


def test_first_entries_that_no_checkpoint_replaces_are_missed(tmp_path: Path) -> None:
    """Seen failing before: they counted as removed."""
    path = tmp_path / "state" / JOURNAL_NAME
    with Journal.open(path, clock=lambda: T0) as journal:
        for number in range(5):
            journal.append("note", {"number": number})
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM entries WHERE seq < 3")
    with Journal.open(path, clock=lambda: T0, is_verified=False) as journal:
        for kind in (None, "note"):
            with pytest.raises(JournalError, match="the entries before 3 are missing"):
                list(journal.entries(kind))
        assert [entry.seq for entry in journal.entries(after_seq=3)] == [4, 5]


@pytest.mark.parametrize("verb", ["verify", "replay", "report", "web", "backup"])
def test_verbs_say_the_code_of_such_a_journal(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    [bit] = undecodable(original, tmp_path, most=1)
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    damaged = bytearray(original.read_bytes())
    damaged[bit // 8] ^= 1 << bit % 8
    journal = state / JOURNAL_NAME
    journal.write_bytes(damaged)
    (state / MARK_NAME).write_bytes(original.with_name(MARK_NAME).read_bytes())
    arguments = {
        "verify": ["journal", "verify", str(journal)],
        "replay": ["replay", str(journal)],
        "report": ["report", "harm", "--journal", str(journal)],
        "web": ["web", "--replay", str(journal)],
        "backup": ["journal", "backup", str(tmp_path / "copy"), "--state-dir", str(state)],
    }
    status = main(arguments[verb])
    told = capsys.readouterr().err
    assert "error BFT-2202: The journal" in told, told
    assert "Traceback" not in told
    assert status == 8


def test_some_flipped_bits_are_found_or_change_nothing(flipper: Flipper) -> None:
    chance = random.Random(67)  # noqa: S311 - repeatable on purpose
    size = len(flipper.data)
    bits = [chance.randrange(8 * size) for _ in range(SAMPLE)]
    findings = [finding for bit in bits for finding in flipper.flipped(bit)]
    assert findings == []
    assert flipper.outcomes["verify BFT-2202"] + flipper.outcomes["verify BFT-2205"] > 2


@pytest.mark.long
def test_every_bit_of_the_first_page_is_found_or_changes_nothing(flipper: Flipper) -> None:
    findings = [
        finding for bit in range(8 * SMALL_PAGE_BYTES) for finding in flipper.flipped(bit, ["read"])
    ]
    assert findings == []


@pytest.mark.long
def test_flipped_bits_of_a_large_journal(tmp_path: Path) -> None:
    """Of 4096-byte pages, as daemons write them."""
    large = Flipper(write_journal(tmp_path / "large", n_rounds=30), tmp_path / "damaged")
    chance = random.Random(68)  # noqa: S311 - repeatable on purpose
    bits = [chance.randrange(8 * len(large.data)) for _ in range(600)]
    assert [finding for bit in bits for finding in large.flipped(bit)] == []
