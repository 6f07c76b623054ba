"""A drain while pilots are pending: their jobs are cancelled at once, and one look ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.daemon.kill_switch import Draining
from bftrainer.daemon.poller import Poller
from bftrainer.fleet.background import Background
from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.pilots.pilots import GONE, Pilot, PilotBook
from bftrainer.fleet.release import PilotEnds
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import Claim, Release
from bftrainer.model.errors import BatchSystemError
from bftrainer.site.policy.model import SitePolicy
from tests.support.journals import journal_at
from tests.support.snapshots import T0, idle_nodes, pending, snapshot
from tests.support.waiting import wait_for
from tests.unit.daemon.test_polling import Silent

# Looks that nobody calls for are far apart, those that are called for are not.
POLICY = SitePolicy(poll_interval_s=0.1, poll_interval_with_hook_s=600.0)
AT_MOST_S = 30.0


class Queue(Silent):
    """A batch system that announces jobs but not the ends of pilots; nothing starts."""

    def __init__(self, *, failures: int = 0) -> None:
        super().__init__()
        self.jobs: dict[str, str] = {}  # job id -> pilot
        self.cancelled: list[tuple[str, bool]] = []  # with force
        self._failures = failures  # of the first cancels

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool) -> None:
        if self._failures:
            self._failures -= 1
            raise BatchSystemError("BFT-1301", "The controller did not answer.", "Wait.")
        for job_id in job_ids:
            self.cancelled.append((job_id, force))
            self.jobs.pop(job_id, None)

    def snapshot(self) -> Snapshot:
        jobs = [replace(pending(job_id, 1), pilot_id=name) for job_id, name in self.jobs.items()]
        return snapshot(idle_nodes(4), jobs)


class Daemon:
    """What drains, with real pilots and looks."""

    def __init__(self, journal: Journal, queue: Queue) -> None:
        self.queue, self.looks = queue, 0
        self.looked = asyncio.Event()
        self.poller = Poller(
            cast("BatchSystem", queue),
            POLICY,
            look=self._look,
            hear=lambda _: None,
            waits_for_cycle=lambda: False,
        )
        self.book = PilotBook(journal, cast("BatchSystem", queue), "bft", lambda: T0, AWAKE)
        plane: Any = SimpleNamespace(
            agents=SimpleNamespace(connected={}),
            trainers=SimpleNamespace(busy_pilots=frozenset),
        )
        self.background = Background()
        self.ends = PilotEnds(
            self.book, cast("ControlPlane", plane), self.background, self.poller.changed
        )
        self.draining = Draining(
            journal=journal,
            pilots=self.book,
            plane=plane,
            ends=self.ends,
            decide_soon=lambda: None,
            clock=lambda: T0,
        )

    def open(self, number: int) -> Pilot:
        claim = Claim(node=f"n{number}", time_limit_s=600.0, for_trainer="t1")
        return self.book.open(f"p{number:06d}", claim, "key")

    def launch(self, number: int) -> None:
        self.queue.jobs[str(number)] = f"p{number:06d}"
        self.book.launched(self.open(number), str(number))

    def drain(self) -> None:
        self.draining.begin("root", 2.0)
        self.draining.tick()

    async def _look(self, *, wants_cycle: bool) -> None:
        """As a daemon's ``poll_once``."""
        del wants_cycle
        self.looks += 1
        began_s, seen = AWAKE(), self.queue.snapshot()
        self.book.observe(seen, began_s)
        self.poller.saw(seen, is_unshown=False, awaits_end=self.book.awaits_end)
        self.ends.cancel(self.book.overdue(), force=True)
        self.looked.set()

    async def next_look(self) -> None:
        self.looked.clear()
        await asyncio.wait_for(self.looked.wait(), AT_MOST_S)


journal = journal_at(T0)


async def _with_looks(daemon: Daemon, test: Any) -> None:
    looking = asyncio.create_task(daemon.poller.run())
    try:
        await daemon.next_look()
        await test(daemon)
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        daemon.ends.close()


def test_the_first_look_after_the_cancel_ends_a_drain_with_pending_pilots(
    journal: Journal,
) -> None:
    async def test(daemon: Daemon) -> None:
        daemon.launch(1)
        daemon.launch(2)
        looks = daemon.looks
        daemon.drain()
        await daemon.next_look()
        assert daemon.book.pilots == {}
        assert daemon.looks == looks + 1
        assert dict(daemon.queue.cancelled).keys() == {"1", "2"}

    asyncio.run(_with_looks(Daemon(journal, Queue()), test))


def test_a_cancel_that_fails_is_repeated_by_looks_that_follow_soon(journal: Journal) -> None:
    async def test(daemon: Daemon) -> None:
        daemon.launch(1)
        daemon.drain()
        for _ in range(5):  # regular ones are ten minutes apart
            await daemon.next_look()
            if not daemon.book.pilots:
                break
        assert daemon.book.pilots == {}
        assert daemon.queue.cancelled == [("1", True)]

    asyncio.run(_with_looks(Daemon(journal, Queue(failures=1)), test))


def test_a_pilot_nobody_knows_to_be_submitted_is_cancelled_by_the_look_that_shows_it(
    journal: Journal,
) -> None:
    """Its submission was under way when the drain began, and was not answered."""

    async def test(daemon: Daemon) -> None:
        pilot = daemon.open(1)
        daemon.drain()
        daemon.book.unanswered(pilot, "The controller did not answer.")
        assert daemon.queue.cancelled == []
        daemon.queue.jobs["71"] = "p000001"  # it was submitted after all
        daemon.poller.changed()
        await daemon.next_look()
        await daemon.next_look()
        assert daemon.queue.cancelled == [("71", True)]
        assert daemon.book.pilots == {}

    asyncio.run(_with_looks(Daemon(journal, Queue()), test))


def test_a_pilot_that_is_stuck_is_not_looked_for_for_ever(journal: Journal) -> None:
    async def test(daemon: Daemon) -> None:
        daemon.launch(1)
        daemon.drain()
        await daemon.next_look()
        called = daemon.looks
        job_ids = daemon.book.job_ids(["p000001"])
        for _ in range(3):
            daemon.ends.cancel(job_ids, force=True)
            await asyncio.sleep(0.05)
        assert daemon.looks == called

    class Stuck(Queue):
        def cancel_pilots(self, job_ids: Sequence[str], *, force: bool) -> None:
            self.cancelled += [(job_id, force) for job_id in job_ids]

    asyncio.run(_with_looks(Daemon(journal, Stuck()), test))


class Deaf(Queue):
    """Its jobs take no signal: their node has lost its power, and forgotten them."""

    def cancel_pilots(self, job_ids: Sequence[str], *, force: bool) -> None:
        if force:
            super().cancel_pilots(job_ids, force=force)
        else:
            self.cancelled += [(job_id, force) for job_id in job_ids]


def test_a_job_that_takes_no_signal_is_killed_before_the_daemon_ends(journal: Journal) -> None:
    """Found on Slurm 22.05: a node lost its power while slurmctld was started again."""

    async def test(daemon: Daemon) -> None:
        daemon.launch(1)
        daemon.draining.end_daemon("down", 0.0)
        await daemon.ends.end_unheeded(0.0)
        await asyncio.to_thread(wait_for, lambda: not daemon.queue.jobs)
        assert ("1", True) in daemon.queue.cancelled

    asyncio.run(_with_looks(Daemon(journal, Deaf()), test))


def test_a_pilot_whose_agent_said_that_it_leaves_is_not_killed(journal: Journal) -> None:
    async def test(daemon: Daemon) -> None:
        daemon.launch(1)
        daemon.launch(2)
        for pilot_id in daemon.book.pilots:
            daemon.book.agent_came(pilot_id)
        leave = [Release(pilot_id=name, node="n", reason="down") for name in daemon.book.pilots]
        daemon.book.release(leave, told=daemon.book.pilots)
        daemon.book.agent_left("p000001", "down")
        daemon.book.agent_left("p000002", GONE)
        assert daemon.book.unheeded() == ["2"]

    asyncio.run(_with_looks(Daemon(journal, Queue()), test))
