"""Pilots and workers under random events: a phase changes by its table alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.local.adapter import create
from bftrainer.fleet.generations.members import worker_on
from bftrainer.fleet.lifecycle import (
    ASKED,
    KEPT,
    PILOT_CHANGES,
    WORKER_CHANGES,
    PilotPhase,
    WorkerPhase,
)
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import Job, JobState
from bftrainer.model.decision import Claim, Release
from tests.support.generations import offer
from tests.support.snapshots import T0, pending, running, snapshot

ID = "p000001"
CLAIM = Claim(node="n1", time_limit_s=3600.0, for_trainer="t1")


@pytest.mark.parametrize(
    ("changes", "first", "last"),
    [
        (PILOT_CHANGES, PilotPhase.OPENED, PilotPhase.ENDED),
        (WORKER_CHANGES, WorkerPhase.STARTING, WorkerPhase.GONE),
    ],
)
def test_every_phase_is_reached_and_the_last_one_alone_is_terminal(
    changes: Mapping[Any, frozenset[Any]], first: Any, last: Any
) -> None:
    every = set(type(first).__members__.values())
    assert set(changes) == every
    reached, new = {first}, {first}
    while new:
        new = {phase for one in new for phase in changes[one]} - reached
        reached |= new
    assert reached == every
    assert [phase for phase, following in changes.items() if not following] == [last]
    assert all(phase not in following for phase, following in changes.items())


def test_a_worker_goes_by_the_table_whatever_it_is_told() -> None:
    rng = random.Random(7)  # noqa: S311
    for _ in range(200):
        worker = worker_on(offer("n1"), "t1-1-1", 0.0)
        for at_s in range(40):
            before, phase = worker.phase, rng.choice(list(WorkerPhase))
            assert worker.becomes(phase, at_s) is (phase in WORKER_CHANGES[before])
            assert len(worker.history) <= KEPT
        assert worker.history[-1].phase == worker.phase


def _events(rng: random.Random, book: PilotBook, clock: list[float]) -> list[Callable[[], object]]:
    """Everything that may happen to a pilot."""
    job = replace(running("71", "n1"), pilot_id=ID)
    reason = rng.choice(["disconnected", "silent", "signal", "told", "lease", "time-limit"])
    goes = Release(pilot_id=ID, node="n1", reason="x", for_job=rng.choice(["", "8"]))

    def look(*jobs: Job) -> object:
        return book.observe(snapshot([], jobs), clock[0] + 1)

    return [
        lambda: book.launched(book.pilots[ID], "71"),
        lambda: look(replace(pending("71", 1), pilot_id=ID)),
        lambda: look(job),
        lambda: look(replace(job, state=JobState.COMPLETING)),
        lambda: rng.random() < 0.2 and look(),
        lambda: book.agent_came(ID),
        lambda: book.agent_left(ID, reason),
        lambda: book.agent_ends(ID, 30.0),
        lambda: rng.random() < 0.5 and book.release([goes]),
        lambda: book.retire(60.0),
        book.keep_retired,
        book.overdue,
    ]


def test_nothing_that_happens_to_a_pilot_is_refused(tmp_path: Path) -> None:
    rng, clock, seen = random.Random(11), [T0], set[PilotPhase]()  # noqa: S311
    with closing(Journal.open(tmp_path / "journal.db", clock=lambda: T0)) as journal:
        for _ in range(300):
            system = create({"socket": tmp_path / "none"})
            book = PilotBook(journal, system, "root", lambda: clock[0])
            book.pilots.clear()
            book.unreachable_s = 100.0
            pilot = book.open(ID, CLAIM, "key")
            while ID in book.pilots and clock[0] < T0 + 1e9:
                before, length = pilot.phase, len(pilot.history)
                rng.choice(_events(rng, book, clock))()
                clock[0] += rng.choice([0.0, 1.0, 60.0])
                seen.add(pilot.phase)
                steps = [PilotPhase(change.phase) for change in pilot.history]
                assert steps[-1] is pilot.phase
                assert all(b in PILOT_CHANGES[a] for a, b in pairwise(steps))
                if before in ASKED:
                    assert pilot.phase in {before, PilotPhase.ENDED}
                    assert pilot.was_asked
                assert KEPT >= len(pilot.history) >= min(length, KEPT)
            assert pilot.phase is PilotPhase.ENDED
    assert seen == set(PilotPhase)
