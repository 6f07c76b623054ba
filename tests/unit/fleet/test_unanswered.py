"""Pilots of which nobody said whether they were submitted: found in the queue, or forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.fleet.lifecycle import PilotPhase
from bftrainer.fleet.pilots.pilots import UNANSWERED_S, PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import Job
from bftrainer.model.decision import Claim, Release
from bftrainer.model.errors import BatchSystemError, UnansweredError
from tests.support.claiming import claiming_of
from tests.support.snapshots import T0, record, running, snapshot
from tests.support.timelines import PLAN
from tests.unit.fleet.test_users_apart import in_loop

ALICE = replace(record("t1"), spec=replace(record("t1").spec, user="alice"))
ITS_JOB = replace(running("71", "n1"), pilot_id="p000001", user="alice")
WHY = "It is not known whether pilot p000001 was submitted: sbatch took longer than 28 s."


class Mute:
    """A batch system that does not say whether it takes pilots."""

    def __init__(self, problem: BatchSystemError) -> None:
        self.problem = problem
        self.forgotten: list[tuple[str, str]] = []
        self.cancelled: list[str] = []

    def launch_pilot(self, request: PilotRequest) -> str:
        del request
        raise self.problem

    def forget_pilot(self, user: str, pilot_id: str) -> None:
        self.forgotten.append((user, pilot_id))

    def cancel_pilots(self, job_ids: list[str], *, force: bool = False) -> None:
        del force
        self.cancelled += job_ids


class Site:
    """A daemon's pilots, of which one was just asked for."""

    def __init__(self, journal: Journal, base: Path, system: Any) -> None:
        self.now_s, self.system = T0, system
        self.book = PilotBook(journal, system, "bft", self._clock, self._clock, as_submitter=True)
        self.refusals, self.gone = PilotRefusals(as_submitter=True), list[str]()
        self.refusals.follow(self.book, lambda: {"t1": ALICE})
        self.claiming = claiming_of(
            self.book, base / "pilots", refusals=self.refusals, on_gone=self.gone.append
        )

    def _clock(self) -> float:
        return self.now_s

    async def ask(self) -> None:
        plan = replace(PLAN, claims=(Claim(node="n1", time_limit_s=600.0, for_trainer="t1"),))
        await self.claiming.ask(self.claiming.open(plan, ["p000001"], {"t1": ALICE}))

    def look(self, *jobs: Job) -> list[str]:
        return self.book.observe(snapshot([], jobs), self.now_s)


@contextlib.contextmanager
def site_of(base: Path, problem: BatchSystemError) -> Iterator[Site]:
    with Journal.open(base / "journal.db", clock=lambda: T0) as journal:
        site = Site(journal, base, Mute(problem))
        try:
            yield site
        finally:
            site.claiming.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_of(tmp_path, UnansweredError("BFT-1223", WHY, "See squeue.")) as site:
        yield site


@in_loop
async def test_one_that_appears_is_adopted_and_lives_on(site: Site) -> None:
    """Seen failing before: its record was ended, and its job cancelled as unknown."""
    await site.ask()
    assert site.refusals.why_of(ALICE)  # no further one is asked for
    assert site.look() == []
    site.now_s += UNANSWERED_S / 2
    assert site.look(ITS_JOB) == []
    pilot = site.book.pilots["p000001"]
    assert (pilot.record.job_id, pilot.phase) == ("71", PilotPhase.SUBMITTED)
    site.now_s += 2 * UNANSWERED_S
    assert site.look(ITS_JOB) == []
    assert site.book.agent_came("p000001") == ""
    assert not site.refusals.why_of(ALICE)
    assert (site.gone, site.system.forgotten, site.book.overdue()) == ([], [], [])


@in_loop
async def test_one_whose_agent_comes_first_is_adopted_too(site: Site) -> None:
    await site.ask()
    assert site.book.agent_came("p000001") == ""
    site.now_s += 1
    assert site.look(ITS_JOB) == []
    assert site.book.pilots["p000001"].phase is PilotPhase.RUNNING
    assert site.book.job_ids(["p000001"]) == ["71"]


@in_loop
async def test_one_that_never_appears_is_forgotten_with_its_files(site: Site) -> None:
    """Seen failing before: key and configuration stayed in the home."""
    forgotten: list[asyncio.Task[None]] = []
    site.book.on_absent = lambda one: forgotten.append(
        asyncio.ensure_future(site.claiming.forget(one))
    )
    await site.ask()
    site.now_s += UNANSWERED_S
    assert site.look() == []
    site.now_s += 1
    assert site.look() == ["p000001"]
    await asyncio.gather(*forgotten)
    assert site.system.forgotten == [("alice", "p000001")]
    assert not site.book.pilots


@in_loop
async def test_one_that_was_given_back_meanwhile_is_cancelled_when_it_appears(site: Site) -> None:
    await site.ask()
    site.book.release([Release(pilot_id="p000001", node="n1", reason="for a job", for_job="8")])
    site.now_s += 10
    assert site.look(ITS_JOB) == []
    assert site.book.overdue() == ["71"]


@in_loop
async def test_one_that_is_refused_is_gone_at_once(tmp_path: Path) -> None:
    with site_of(tmp_path, BatchSystemError("BFT-1222", "Slurm refused it: no.", "")) as site:
        await site.ask()
        assert (site.gone, dict(site.book.pilots)) == (["p000001"], {})
