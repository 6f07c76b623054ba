"""Which decision is due next: the requests of a turn, haste for announced jobs, sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bftrainer.daemon.decision_stage import DecisionKind, DecisionsDue

FULL = DecisionKind(is_new_snapshot=False, gives_back_only=False)
OF_POLL = DecisionKind(is_new_snapshot=True, gives_back_only=False)
HASTY = DecisionKind(is_new_snapshot=False, gives_back_only=True)


@pytest.fixture
def runs() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


async def is_any(due: DecisionsDue) -> bool:
    """Return whether a decision is requested; that request counts as answered."""
    try:
        async with asyncio.timeout(0):
            await due.wait()
    except TimeoutError:
        return False
    return True


def slow() -> DecisionsDue:
    """Return one whose last full decision took longer than an announced job should wait."""
    due = DecisionsDue()
    due.taken(FULL, 0.026)
    return due


def test_nothing_is_due_until_it_is_requested(runs: asyncio.Runner) -> None:
    due = DecisionsDue()
    assert not runs.run(is_any(due))
    due.soon()
    due.soon()
    assert runs.run(is_any(due))
    assert not runs.run(is_any(due))  # both were one


def test_a_new_snapshot_belongs_to_one_decision() -> None:
    due = DecisionsDue()
    due.soon(is_new_snapshot=True)
    due.soon()  # an agent came: the snapshot is still new
    assert due.next_kind() == OF_POLL
    assert due.next_kind() == FULL


def test_an_announced_job_hastens_only_if_decisions_are_long() -> None:
    due = DecisionsDue()
    due.for_announced()
    assert due.next_kind() == FULL
    due.taken(FULL, 0.025)
    due.for_announced()
    assert due.next_kind() == FULL
    due.taken(FULL, 0.026)
    due.for_announced()
    assert due.next_kind() == HASTY


def test_a_hasty_decision_leaves_the_snapshot_to_the_full_one_that_follows(
    runs: asyncio.Runner,
) -> None:
    due = slow()
    due.soon(is_new_snapshot=True)
    due.for_announced()
    assert runs.run(is_any(due))
    assert due.next_kind() == HASTY
    assert not runs.run(is_any(due))
    due.taken(HASTY, 0.001)
    assert runs.run(is_any(due))
    assert due.next_kind() == OF_POLL


def test_the_length_of_a_hasty_decision_says_nothing_of_full_ones() -> None:
    due = slow()
    due.for_announced()
    due.taken(due.next_kind(), 0.001)
    due.for_announced()
    assert due.next_kind() == HASTY


def test_a_decision_put_off_is_due_again_as_it_was(runs: asyncio.Runner) -> None:
    due = DecisionsDue()
    due.put_off(OF_POLL)
    assert runs.run(is_any(due))
    assert due.next_kind() == OF_POLL
    due.put_off(HASTY)
    assert runs.run(is_any(due))
    assert due.next_kind() == HASTY
    assert due.next_kind() == FULL


def test_a_hasty_decision_that_was_put_off_does_not_make_the_next_full_one_hasty_twice() -> None:
    due = slow()
    due.for_announced()
    due.put_off(due.next_kind())
    assert due.next_kind() == HASTY
    due.taken(HASTY, 0.001)
    assert due.next_kind() == FULL
