"""What is stored as a difference comes back to the byte."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bftrainer.journal import Journal, differences
from bftrainer.journal.differences import (
    DEFLATED,
    PREFIX,
    DifferenceWriter,
    Reader,
    applied,
    difference,
)
from bftrainer.model.canonical import CanonicalError, text_of, to_plain
from milp.plain import Later
from tests.support.examples import examples


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A part of an item, whose fields are written as if they were the item's."""

    shade: float = 0.0
    tags: tuple[str, ...] = ()
    ADDED: ClassVar = frozenset({"tags"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """What lists are made of, such as a node or a job."""

    name: str
    colour: Colour = Colour.RED
    size: float = 0.0
    odd: int | float | str | None = None
    parts: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    last: str = ""
    learnt: dict[str, float] = field(default_factory=dict)
    is_learning: bool = False
    look: Look = field(default_factory=Look)
    INLINE: ClassVar = frozenset({"look"})
    ADDED: ClassVar = frozenset({"later", "last", "learnt", "is_learning"})
    REMOVED: ClassVar = frozenset({"taught"})
    LATER: ClassVar = Later("taught", frozenset({"learnt", "is_learning"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A payload."""

    items: tuple[Item, ...] = ()
    best: Item | None = None
    by_name: dict[str, Item] = field(default_factory=dict)
    by_number: dict[int, float] = field(default_factory=dict)
    pair: tuple[int, str] = (0, "")
    names: frozenset[str] = frozenset()
    anything: Any = None


_leaves = st.none() | st.booleans() | st.sampled_from((0, 1, 1.0, 0.0, 2)) | st.text(max_size=3)
_plain = st.recursive(
    _leaves,
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("abcdvxl"), inner, max_size=5)
    ),
    max_leaves=25,
)
_items = st.builds(
    Item,
    name=st.sampled_from("abcde"),
    colour=st.sampled_from(Colour),
    size=st.sampled_from((0, 1, 1.0, -0.0, 2.5)),
    odd=st.sampled_from((None, 1, 1.0, "1", "a")),
    parts=st.lists(st.sampled_from("xyz"), max_size=3).map(tuple),
    later=st.lists(st.sampled_from("xyz"), max_size=2).map(tuple),
    last=st.sampled_from(("", "a", "b")),
    learnt=st.dictionaries(st.sampled_from("pq"), st.sampled_from((0.5, 1.0)), max_size=2),
    is_learning=st.booleans(),
    look=st.builds(
        Look,
        shade=st.sampled_from((0, 1, 1.0, 2.5)),
        tags=st.lists(st.sampled_from("xy"), max_size=2).map(tuple),
    ),
)
_wholes = st.builds(
    Whole,
    items=st.lists(_items, max_size=7).map(tuple),
    best=st.none() | _items,
    by_name=st.dictionaries(st.sampled_from("abc"), _items, max_size=3),
    by_number=st.dictionaries(st.integers(0, 3), st.sampled_from((0, 1, 1.5)), max_size=3),
    pair=st.tuples(st.integers(0, 1), st.sampled_from("ab")),
    names=st.frozensets(st.sampled_from("abc")),
    anything=_plain,
)


@settings(max_examples=examples(200), deadline=None)
@given(base=_plain, new=_plain)
def test_a_difference_makes_the_one_of_the_other(base: Any, new: Any) -> None:
    before, change = text_of(base), difference(base, new)
    assert text_of(applied(base, change)) == text_of(new)
    assert text_of(base) == before
    assert (change is None) == (before == text_of(new))


@settings(max_examples=examples(150), deadline=None)
@given(base=_wholes, new=_wholes, kept=st.lists(st.sampled_from(Whole.__slots__)))
def test_values_of_a_type_are_compared_as_they_are_written(
    base: Whole, new: Whole, kept: list[str]
) -> None:
    new = replace(new, **{name: getattr(base, name) for name in kept})
    change = difference(base, new, Whole)
    before, after = text_of(to_plain(base)), text_of(to_plain(new))
    assert text_of(applied(to_plain(base), change)) == after
    assert (change is None) == (before == after)


def test_only_what_changed_is_written() -> None:
    items = tuple(Item(name=f"n{number}") for number in range(1000))
    base = Whole(items=items)
    changed = (*items[:4], replace(items[4], colour=Colour.BLUE), *items[6:], Item(name="new"))
    change = difference(base, Whole(items=changed), Whole)
    assert change["d"]["items"]["l"] == [
        [0, 4],
        {"at": 4, "c": {"d": {"colour": {"v": "blue"}}, "x": []}},
        [6, 994],
        {"v": to_plain(Item(name="new"))},
    ]
    assert difference(base, Whole(items=tuple(map(replace, items))), Whole) is None


@settings(max_examples=examples(60), deadline=None)
@given(values=st.lists(_wholes, min_size=1, max_size=12), order=st.randoms())
def test_every_payload_comes_back_in_any_order(values: list[Whole], order: Any) -> None:
    writer, stored, given_texts = DifferenceWriter(), dict[int, str](), dict[int, str]()
    for seq, value in enumerate(values, 1):
        shortened = writer.shortened("k", value)
        if order.random() < 0.8:
            stored[seq] = shortened.written_as(seq)
            given_texts[seq] = text_of(to_plain(value))
        else:
            writer.forget()  # its transaction failed
    reader = Reader(stored.get)
    asked = list(stored) * 2
    order.shuffle(asked)
    for seq in asked:
        assert text_of(reader.whole(seq, stored[seq])) == given_texts[seq]


def test_a_journal_is_read_beside_its_writer_and_is_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "LONGEST_CHAIN", 30)
    path = tmp_path / "journal.db"
    items = [Item(name=f"n{n}") for n in range(400)]
    last_turn = 70
    with Journal.open(path, clock=time.time) as journal:
        for turn in range(last_turn + 1):
            items[turn % 400] = Item(name=f"n{turn % 400}", size=float(turn))
            journal.note_large("decision", Whole(items=tuple(items), anything=turn))
            journal.note("other", {"turn": turn})
        with Journal.open(path, clock=time.time) as reader:
            turns = [e.payload["anything"] for e in reader.entries("decision")]
            assert turns == list(range(last_turn + 1))
            last = reader.latest("decision")
            assert last is not None
            assert last.payload_as(Whole).items == tuple(items)
            [some] = reader.entries("decision", after_seq=100, limit=1)
            assert some.payload["anything"] == 50
        assert journal.verify() == 2 * len(turns)
    assert path.stat().st_size < len(turns) * len(text_of(to_plain(items))) / 10


def test_a_value_without_canonical_form_costs_its_own_entry_only(tmp_path: Path) -> None:
    with Journal.open(tmp_path / "journal.db", clock=time.time) as journal:
        for size in (1.0, float("nan"), 2.0):
            journal.note_large("decision", Whole(best=Item(name="a", size=size)))
        found = [e.payload_as(Whole).best for e in journal.entries("decision")]
    assert found == [Item(name="a", size=1.0), Item(name="a", size=2.0)]


@pytest.mark.parametrize(
    "payload",
    [
        PREFIX + "7}",
        PREFIX + '7,"changes":{"l":[[0,1]]}}',
        PREFIX + '8,"changes":null}',  # from itself
        PREFIX + '"x","changes":null}',
        PREFIX + '1,"changes":{"d":{"a":5},"x":[]}}',
        PREFIX + '1,"changes":' + "[" * 50_000,
        PREFIX + '1,"a-text-deflated":"eJw="}',
        PREFIX + '1,"a-text-deflated":7}',
        PREFIX,
        DEFLATED + '"!"}',
        DEFLATED + "}",
    ],
)
def test_a_difference_from_nothing_is_refused(payload: str) -> None:
    with pytest.raises(CanonicalError):
        Reader({1: '{"a":1}', 8: payload}.get).whole(8, payload)
