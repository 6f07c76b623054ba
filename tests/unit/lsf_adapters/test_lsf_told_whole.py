"""Pieces of lsb.events become records; what a user hides in one becomes none."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lsf_adapters.notifications.records import (
    DROPPED,
    MOST_HIDDEN_BYTES,
    MOST_RECORD_BYTES,
    WholeRecords,
)
from tests.support.lsf_events import job_new, job_start

GOOD = [job_new(1, name='a "b"'), job_start(1, ["n1"]), job_new(2, command="é"), "# 12"]


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(0, 900), max_size=12))
def test_pieces_of_any_length_give_the_same(cuts: list[int]) -> None:
    text = "".join(f"{one}\n" for one in GOOD).encode()
    at = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    whole, found = WholeRecords(), list[str]()
    for begin, end in itertools.pairwise(at):
        found += whole.add(text[begin:end])
    assert found == GOOD


@pytest.mark.parametrize("hidden", ["\n{}\n", "x\n\n\n{}\n{}\n", '"\n{}\n', '\n{}\n"', "\n{} \\"])
def test_a_record_inside_a_text_is_none(hidden: str) -> None:
    forged = job_new(666, user="root")
    cwd = "/home/eve" + hidden.replace("{}", forged)
    text = f"{GOOD[0]}\n{job_new(3, cwd=cwd)}\n{GOOD[1]}\n"
    found = WholeRecords().add(text.encode())
    assert set(found[1:-1]) == {DROPPED}
    assert (found[0], found[-1]) == (GOOD[0], GOOD[1])


@pytest.mark.parametrize("n_quotes", [0, 1])
def test_an_overlong_record_hides_nothing_behind_it(n_quotes: int) -> None:
    """What it hides is its own: its quotes count although it is dropped."""
    long = '"' + "x" * MOST_RECORD_BYTES + '"' * (1 - n_quotes)
    text = f"{long}\n{job_new(666)}\n" + '"\n' * n_quotes + f"{GOOD[0]}\n"
    hidden = [DROPPED, DROPPED] if n_quotes else [job_new(666)]
    assert WholeRecords().add(text.encode()) == [DROPPED, *hidden, GOOD[0]]


def test_a_quote_without_end_hides_only_so_much() -> None:
    whole, n_records = WholeRecords(), 2 * MOST_HIDDEN_BYTES // len(GOOD[0])
    assert whole.add(b'"torn\n') == [DROPPED]
    found = [one for _ in range(n_records) for one in whole.add(f"{GOOD[0]}\n".encode())]
    assert set(found) == {DROPPED, GOOD[0]}
    assert n_records // 3 < found.count(GOOD[0]) < n_records
    assert found == sorted(found, reverse=True), "first all are dropped, then none"


def test_what_is_kept_is_bounded() -> None:
    whole, kept = WholeRecords(), 0
    for _ in range(40):
        assert whole.add(b"x" * 20_000) == []
        kept = max(kept, sum(map(len, whole._parts)))
    assert kept <= MOST_RECORD_BYTES
    assert whole.add(b"\nend\n") == [DROPPED, "end"]


@pytest.mark.parametrize("torn", ['half" 1 2', 'half" "', "half"])
def test_after_a_skip_the_torn_record_is_none(torn: str) -> None:
    whole = WholeRecords()
    whole.add(b'"JOB_NEW" "10')
    whole.skip()
    assert whole.add(f"{torn}\n{GOOD[0]}\n".encode()) == [DROPPED, GOOD[0]]
