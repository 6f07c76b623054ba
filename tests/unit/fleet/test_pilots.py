"""Pilots that are released: who is told, and who is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from bftrainer.batch.local.adapter import create
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.release import PilotEnds
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import Job
from bftrainer.model.decision import Claim, Release
from tests.support.snapshots import T0, pending, running, snapshot

if TYPE_CHECKING:
    from bftrainer.fleet.background import Background
    from bftrainer.fleet.control_plane import ControlPlane

WAITS = replace(pending("71", 1), pilot_id="p000001")
RUNS = replace(running("71", "n1"), pilot_id="p000001", time_limit_s=3540.0)
CLAIM = Claim(node="n1", time_limit_s=3600.0, for_trainer="t1")
GOES = Release(
    pilot_id="p000001", node="n1", reason="Ordinary job 8 could start here.", for_job="8"
)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[PilotBook]:
    """Of one pilot, job 71; nothing is asked of a server."""
    with Journal.open(tmp_path / "journal.db", clock=lambda: T0) as journal:
        book = PilotBook(journal, create({"socket": tmp_path / "none"}), "root", lambda: T0)
        book.launched(book.open("p000001", CLAIM, "key"), "71")
        yield book


def _look(book: PilotBook, job: Job) -> None:
    assert book.observe(snapshot([], [job]), T0 + 1) == []


def test_its_limit_is_what_the_batch_system_made_of_it(book: PilotBook) -> None:
    _look(book, WAITS)
    assert book.pilots["p000001"].record.time_limit_s == 3600.0
    _look(book, RUNS)
    assert book.pilots["p000001"].record.time_limit_s == 3540.0
    assert book.pilots["p000001"].start_s == T0


def test_who_was_told_is_not_cancelled(book: PilotBook) -> None:
    _look(book, RUNS)
    assert book.release([GOES], told=["p000001"]) == []
    assert book.give_backs == 1


def test_who_could_not_be_told_is_cancelled(book: PilotBook) -> None:
    _look(book, WAITS)
    assert book.release([GOES]) == ["71"]


def test_a_cancel_that_fails_again_is_logged_once(
    book: PilotBook, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        book.cancel(["71"])  # nobody answers
    assert len(caplog.records) == 1
    assert "cancelling pilots 71 failed" in caplog.text


def test_a_release_counts_once(book: PilotBook) -> None:
    _look(book, RUNS)
    assert book.release([GOES]) == ["71"]
    assert book.release([GOES]) == []
    assert book.give_backs == 1


@pytest.mark.parametrize(
    ("why", "is_asked_about"),
    [("disconnected", True), ("silent", False), ("signal", True), ("time-limit", False)],
)
def test_how_a_pilot_ended_is_asked_where_its_agent_did_not_want_to(
    book: PilotBook, why: str, is_asked_about: bool
) -> None:
    _look(book, RUNS)
    book.agent_left("p000001", why)
    assert not book.has_unexplained  # it has not ended
    assert book.observe(snapshot([], []), T0 + 1) == ["p000001"]
    assert book.has_unexplained is is_asked_about
    told = book.explanations()
    assert [(one.pilot_id, one.is_mute, one.is_given_back) for one in told] == (
        [("p000001", why == "disconnected", False)] if is_asked_about else []
    )
    assert not any(one.how.has_failed for one in told)  # it does not answer: nobody is blamed
    assert not book.has_unexplained


def test_one_that_was_released_or_came_back_is_not_asked_about(book: PilotBook) -> None:
    _look(book, RUNS)
    book.agent_left("p000001", "disconnected")
    book.agent_came("p000001")
    book.release([replace(GOES, for_job="")])
    book.agent_left("p000001", "disconnected")
    book.observe(snapshot([], []), T0 + 1)
    assert not book.has_unexplained


@pytest.mark.parametrize("has_come", [True, False])
def test_one_that_was_given_back_is_asked_about_if_it_held_its_node(
    book: PilotBook, *, has_come: bool
) -> None:
    """The batch system may have preempted it at the same moment; only harm cares."""
    _look(book, RUNS)
    if has_come:
        book.agent_came("p000001")
    book.release([GOES])
    book.observe(snapshot([], []), T0 + 1)
    assert [one.is_given_back for one in book.explanations()] == [True] * has_come


def test_how_one_that_was_given_back_ended_is_told_to_harm_alone(book: PilotBook) -> None:
    told: list[tuple[str, str]] = []
    plane = cast("ControlPlane", None)  # it is asked about agents that failed
    _look(book, RUNS)
    book.agent_came("p000001")
    book.release([GOES])
    book.observe(snapshot([], []), T0 + 1)
    ends = PilotEnds(book, plane, cast("Background", None), lambda: None)
    with ThreadPoolExecutor(1) as looking:
        accounts = [lambda pilot_id, _: told.append(("accounts", pilot_id))]
        harm = lambda pilot_id, _: told.append(("harm", pilot_id))  # noqa: E731 - one listener
        asyncio.run(ends.explain(looking, accounts, harm))
    ends.close()
    assert told == [("harm", "p000001")]


@pytest.mark.parametrize("limit_s", [float("nan"), float("inf"), None])
def test_a_limit_that_is_none_changes_nothing(book: PilotBook, limit_s: float | None) -> None:
    _look(book, replace(RUNS, time_limit_s=limit_s))
    assert book.pilots["p000001"].record.time_limit_s == 3600.0
