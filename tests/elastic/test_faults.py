"""A fixed part of ``bench_faults``: real agents and workers, a few faults, exact books."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest
from _bench.faults import lineage, live

# Twenty random ones as well: make test-long.
FIXED = (
    ("kill rank 0",),
    ("stop",),
    ("without a daemon: kill",),
    ("kill in a rescale", "raise"),
    ("out of memory", "kill all"),
)


@pytest.mark.parametrize(
    "schedules", [FIXED, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
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
    assert outcome.steps > 10


def test_steps_that_were_redone_count_as_of_the_last_time() -> None:
    commits = [
        {"generation": g, "attempt": 1, "step": s}
        for g, steps in ((1, (1, 2, 3, 4)), (2, (5, 6)), (3, (4,)), (4, (5,)))
        for s in steps
    ]
    assert lineage(commits) == {1: (1, 1), 2: (1, 1), 3: (1, 1), 4: (3, 1), 5: (4, 1)}
