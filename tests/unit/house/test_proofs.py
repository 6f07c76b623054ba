"""Shards of the long proofs, and the record that they are cut by."""

from __future__ import annotations

from collections import Counter

from tests.support.proofs import (
    ALONE,
    ALONE_DAYS,
    UNKNOWN_S,
    Proof,
    file_of,
    is_due,
    read,
    shards,
    written,
)

SECONDS = {"a": (40.0, 20.0), "b": (30.0,), "c": (30.0,), "d": (11.0, 11.0), "e": (25.0,)}
PROOFS = {
    f"tests/{file}.py::test_{number}": Proof("passed", seconds, "2026-11-26", "c0ffee")
    for file, all_s in SECONDS.items()
    for number, seconds in enumerate(all_s)
}
NEW = "tests/new.py::test_0"


def test_shards_are_equal_and_whole_files_and_together_everything() -> None:
    parts = shards([*PROOFS, NEW], 3, PROOFS)
    assert sorted(test for part in parts for test in part) == sorted([*PROOFS, NEW])
    files = [{file_of(test) for test in part} for part in parts]
    assert sum(map(len, files)) == len(set.union(*files))
    sums = [sum(PROOFS[t].seconds if t in PROOFS else UNKNOWN_S for t in p) for p in parts]
    assert sorted(sums) == [55.0, 60.0, 67.0]


def test_shards_do_not_depend_on_the_order_of_tests() -> None:
    """0.1 + 0.2 + 0.3 is more than 0.3 + 0.2 + 0.1, and each process has its order of a set."""
    a, b = ([f"tests/{file}.py::test_{n}" for n in (1, 2, 3)] for file in "ab")
    proofs = {t: Proof("passed", int(t[-1]) / 10, "2026-11-26", "c0ffee") for t in (*a, *b)}
    assert shards([*a, *b[::-1]], 2, proofs) == shards([*a[::-1], *b], 2, proofs) == [a, b]


def test_files_that_run_alone_are_spread_over_shards_and_days() -> None:
    tests = [f"{ALONE}tests/unit/test_{number}.py]" for number in range(700)]
    parts = shards([*tests, *PROOFS], 7, PROOFS)
    assert all(90 <= len(part) <= 110 for part in parts)
    alone = sorted({*parts[0]} - {*PROOFS})
    days_of = {test: [day for day in range(ALONE_DAYS) if is_due(test, day)] for test in alone}
    assert {len(days) for days in days_of.values()} == {1}
    assert max(Counter(day for (day,) in days_of.values()).values()) < 40
    assert all(is_due(test, day) for test in PROOFS for day in range(ALONE_DAYS))


def test_a_written_record_is_read_again() -> None:
    assert read(written(PROOFS)) == PROOFS
    assert len(written(PROOFS).splitlines()) == len(PROOFS) + 2
