"""Records with parts whose fields are written on the level of the record, worked out by hand."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import pytest

from bftrainer.journal.differences import applied, difference
from bftrainer.model.canonical import CanonicalError, decode, encode, to_plain
from milp.plain import Later


@dataclass(slots=True, kw_only=True)
class Sizes:
    least: int
    most: int
    only: tuple[int, ...] = ()
    ADDED: ClassVar = frozenset({"only"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    is_open: bool = False
    is_paid: bool = False


class Phase(enum.Enum):
    BEGUN = Flags()
    OPEN = Flags(is_open=True)
    PAID = Flags(is_paid=True)  # nothing is open and paid


class Complaint(NamedTuple):
    who: str = ""
    why: str = ""


@dataclass(slots=True, kw_only=True)
class Course:
    phase: Phase = Phase.BEGUN
    complaint: Complaint = field(default_factory=Complaint)
    ends_by_s: float | None = None
    speed: float = 0.0
    INLINE: ClassVar = frozenset({"phase"})
    ADDED: ClassVar = frozenset({"speed"})
    REMOVED: ClassVar = frozenset({"pace"})
    LATER: ClassVar = Later("pace", frozenset({"speed"}))


@dataclass(kw_only=True, eq=False)
class Order:
    name: str
    sizes: Sizes
    course: Course = field(default_factory=Course)
    INLINE: ClassVar = frozenset({"sizes", "course"})


WRITTEN = (
    b'{"complaint":["w1","lost"],"ends_by_s":null,"is_open":true,"is_paid":false,"least":1,'
    b'"most":4,"name":"a","pace":{"speed":2.0},"type":"Order"}'
)


def order() -> Order:
    course = Course(phase=Phase.OPEN, complaint=Complaint("w1", "lost"), speed=2.0)
    return Order(name="a", sizes=Sizes(least=1, most=4), course=course)


def test_fields_of_parts_are_written_and_read_on_the_level_of_their_record() -> None:
    assert encode(order()) == WRITTEN
    read = decode(WRITTEN, Order)
    assert (read.name, read.sizes, read.course) == ("a", order().sizes, order().course)
    assert read.course.complaint.why == "lost"
    assert encode(read) == WRITTEN


def test_what_is_missing_has_the_defaults_of_the_parts_class() -> None:
    read = decode(b'{"least":1,"most":4,"name":"a","type":"Order"}', Order)
    assert (read.sizes, read.course) == (Sizes(least=1, most=4, only=()), Course())
    read = decode(
        b'{"is_paid":true,"least":1,"most":4,"name":"a","only":[2],"type":"Order"}', Order
    )
    assert (read.sizes.only, read.course.phase) == ((2,), Phase.PAID)


@pytest.mark.parametrize(
    ("text", "where", "cause"),
    [
        ('{"most":4,"name":"a","type":"Order"}', "Order.least", "is missing"),
        (
            '{"least":1,"most":4,"name":"a","sizes":{},"type":"Order"}',
            "Order.sizes",
            "is not a known field",
        ),
        (
            '{"least":1,"most":"4","name":"a","type":"Order"}',
            "Order.most",
            "must be a whole number, not a string",
        ),
        (
            '{"is_open":true,"is_paid":true,"least":1,"most":4,"name":"a","type":"Order"}',
            "Order",
            "holds no Phase",
        ),
        (
            '{"complaint":["w1"],"least":1,"most":4,"name":"a","type":"Order"}',
            "Order.complaint",
            "must have 2 items, not 1",
        ),
    ],
)
def test_what_is_wrong_is_named_as_it_is_written(text: str, where: str, cause: str) -> None:
    with pytest.raises(CanonicalError) as refused:
        decode(text, Order)
    assert (refused.value.where, refused.value.bare_cause) == (where, cause)


def test_a_difference_has_the_fields_of_parts_beside_the_others() -> None:
    base, new = order(), order()
    new.sizes = Sizes(least=1, most=5, only=(2, 5))
    new.course = replace(new.course, phase=Phase.PAID, speed=0.0)
    change = difference(base, new, Order)
    assert change == {
        "d": {
            "is_open": {"v": False},
            "is_paid": {"v": True},
            "most": {"v": 5},
            "only": {"v": [2, 5]},
        },
        "x": ["pace"],
    }
    assert applied(to_plain(base), change) == to_plain(new)
    assert difference(base, order(), Order) is None


@dataclass(frozen=True, kw_only=True)
class Twice:
    least: int
    sizes: Sizes
    INLINE: ClassVar = frozenset({"sizes"})


@dataclass(frozen=True, kw_only=True)
class Plain:
    size: int
    INLINE: ClassVar = frozenset({"size"})


@dataclass(frozen=True, kw_only=True)
class Late:
    course: Course = field(default_factory=Course)
    INLINE: ClassVar = frozenset({"course"})
    ADDED: ClassVar = frozenset({"course"})


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        (Twice(least=1, sizes=Sizes(least=1, most=4)), "is the name of 2 fields of Twice"),
        (Plain(size=1), "of Plain cannot be written inline"),
        (Late(), "of Late cannot be written inline"),
    ],
)
def test_parts_that_cannot_be_told_apart_are_refused(record: object, cause: str) -> None:
    with pytest.raises(CanonicalError, match=cause):
        encode(record)
