"""What is stored as a difference comes back to the byte."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.canonical import CanonicalError, text_of
from bftrainer.journal import Journal
from bftrainer.journal.differences import LONGEST_CHAIN, PREFIX, Reader, Writer, applied, difference

_leaves = st.none() | st.booleans() | st.sampled_from((0, 1, 1.0, 0.0, 2)) | st.text(max_size=3)
_plain = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("abcdvxl"), inner, max_size=5)
    ),
    max_leaves=25,
)


@settings(max_examples=400, deadline=None)
@given(base=_plain, new=_plain)
def test_a_difference_makes_the_one_of_the_other(base: Any, new: Any) -> None:
    before, change = text_of(base), difference(base, new)
    assert text_of(applied(base, change)) == text_of(new)
    assert text_of(base) == before
    assert (change is None) == (before == text_of(new))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(_plain, min_size=1, max_size=12), order=st.randoms())
def test_every_payload_comes_back_in_any_order(values: list[Any], order: Any) -> None:
    writer, stored, given_texts = Writer(), dict[int, str](), dict[int, str]()
    fill = "x" * 3000  # long enough to be worth it
    for seq, value in enumerate(values, 1):
        plain = {"fill": fill, "value": value}
        given_texts[seq] = text_of(plain)
        writer.begin()
        stored[seq] = writer.shortened("k", seq, given_texts[seq], plain)
        if order.random() < 0.8:
            writer.keep()  # else its transaction failed
        else:
            del stored[seq], given_texts[seq]
    reader = Reader(stored.get)
    asked = list(stored) * 2
    order.shuffle(asked)
    for seq in asked:
        assert reader.whole(seq, stored[seq]) == given_texts[seq]
    assert all(len(text) < 3000 or not text.startswith(PREFIX) for text in stored.values())


def test_a_journal_is_read_beside_its_writer_and_is_small(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    nodes: list[dict[str, object]] = [{"name": f"n{n}", "state": "idle"} for n in range(400)]
    with Journal.open(path, clock=time.time) as journal:
        for turn in range(2 * LONGEST_CHAIN + 10):
            nodes[turn % 400] = {"name": f"n{turn % 400}", "state": "busy", "since_s": float(turn)}
            journal.append("decision", {"turn": turn, "nodes": nodes})
            journal.append("other", {"turn": turn})
        with Journal.open(path, clock=time.time) as reader:
            turns = [e.plain()["turn"] for e in reader.entries("decision")]
            assert turns == list(range(2 * LONGEST_CHAIN + 10))
            last = reader.latest("decision")
            assert last is not None
            assert last.plain()["nodes"] == nodes
            [some] = reader.entries("decision", after_seq=100, limit=1)
            assert some.plain()["turn"] == 50
        assert journal.verify() == 2 * len(turns)
    assert path.stat().st_size < len(turns) * len(text_of(nodes)) / 10


@pytest.mark.parametrize(
    "payload",
    [
        PREFIX + "7}",
        PREFIX + '7,"changes":{"l":[[0,1]]}}',
        PREFIX + '8,"changes":null}',  # from itself
        PREFIX + '"x","changes":null}',
        PREFIX + '1,"changes":{"d":{"a":5},"x":[]}}',
        PREFIX + '1,"changes":' + "[" * 50_000,
        PREFIX,
    ],
)
def test_a_difference_from_nothing_is_refused(payload: str) -> None:
    with pytest.raises(CanonicalError):
        Reader({1: '{"a":1}', 8: payload}.get).whole(8, payload)
