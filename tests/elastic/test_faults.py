"""Real agents and workers, a few faults that are drawn, exact books."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from tests.elastic.faults import EPOCH_STEPS, lineage, live, odd_epochs
from tests.elastic.journal import Entry

FEW = (("kill in a rescale", "raise"),)
# These and twenty random ones: make test-long.
FIXED = (("kill rank 0",), *FEW, ("one step apart",))


@pytest.mark.parametrize(
    "schedules",
    [
        FEW,
        pytest.param(FIXED, marks=pytest.mark.long),
        pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1200)]),
    ],
)
def test_faults_lose_nothing(
    tmp_path: Path, schedules: int | tuple[tuple[str, ...], ...], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "bftrainer")
    notes: list[str] = []
    until_s = time.monotonic() + 1000.0
    outcome = asyncio.run(live(tmp_path, 7, schedules, notes.append, until_s))  # odd: replayed
    assert outcome.is_good, (outcome, notes)
    assert len(outcome.schedules) == (schedules if isinstance(schedules, int) else len(schedules))
    assert outcome.steps > EPOCH_STEPS  # so that a whole epoch was judged


Steps = tuple[int, tuple[int, ...]]  # where a generation began, what it committed


def _books(*generations: tuple[str, int, Steps]) -> tuple[list[Entry], list[Entry]]:
    """Commits and entries of (token, number, steps); a state's hash tells its history."""
    commits: list[Entry] = []
    entered: list[Entry] = []
    history = {0: "-"}
    for at_s, (token, number, (first, steps)) in enumerate(generations):
        said = {"token": token, "generation": number, "attempt": 1, "at_s": float(at_s)}
        entered.append({**said, "step": first, "hash": history[first]})
        for step in steps:
            history[step] = f"{history[step - 1]}{token}"
            commits.append({**said, "step": step, "hash": history[step]})
    return commits, entered


def test_steps_that_were_redone_count_as_of_the_last_time() -> None:
    books = _books(
        ("a", 1, (0, (1, 2, 3, 4))), ("b", 2, (4, (5, 6))), ("c", 3, (3, (4,))), ("d", 4, (4, (5,)))
    )
    assert lineage(*books) == {1: "a", 2: "a", 3: "a", 4: "c", 5: "d"}


def test_a_number_that_was_used_twice_is_two_generations() -> None:
    books = _books(("a", 1, (0, (1, 2))), ("b", 2, (2, (3,))), ("c", 2, (2, (3, 4))))
    assert lineage(*books) == {1: "a", 2: "a", 3: "c", 4: "c"}


def test_a_generation_may_go_on_from_one_that_outlived_a_later_one() -> None:
    commits, entered = _books(("a", 1, (0, (1, 2, 3))))
    beside, entered_beside = _books(("a", 1, (0, (1,))), ("b", 2, (1, (2,))))
    later = {"token": "c", "generation": 3, "attempt": 1, "at_s": 9.0}
    commits += [*beside[1:], {**later, "step": 4, "hash": "-aaac"}]
    entered += [entered_beside[1], {**later, "step": 3, "hash": "-aaa"}]
    assert lineage(commits, entered) == {1: "a", 2: "a", 3: "a", 4: "c"}


def test_a_state_that_nobody_made_is_missed() -> None:
    commits, entered = _books(("a", 1, (0, (1, 2))), ("b", 2, (2, (3,))))
    entered[1]["hash"] = "another"
    assert lineage(commits, entered) == {3: "b"}


def test_a_sample_that_came_twice_or_never_is_found() -> None:
    whole = {"epoch": 0, "step": 1, "generation": 1, "attempt": 1, "pid": 7}
    after = {**whole, "epoch": 1, "step": 2, "ids": [0]}
    assert not odd_epochs([{**whole, "ids": list(range(203))}, after])
    assert odd_epochs([{**whole, "ids": [*range(203), 5]}, after])
    assert odd_epochs([{**whole, "ids": list(range(202))}, after])
