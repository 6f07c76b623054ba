"""Agents of an earlier incarnation, at the start of a control plane, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from bftrainer.batch.awake import AwakeClock
from bftrainer.fleet.control_plane import ControlPlane, Listener
from bftrainer.fleet.wire.keys import KeyPair, generate_pair
from bftrainer.fleet.wire.messages import Leave
from bftrainer.fleet.wire.server import ENDED
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import PilotRecord, PilotState
from bftrainer.site.policy.model import SitePolicy
from tests.support.journals import journal_at
from tests.unit.fleet.test_wire import Agent, hello, until

PILOTS = ("p000001", "p000002", "p000003")


class Heir:
    """A control plane that starts, and the keys of agents that were there before."""

    def __init__(self, journal: Journal, directory: Path) -> None:
        self.keys, self.agents = generate_pair(), {pilot_id: generate_pair() for pilot_id in PILOTS}
        self.gone: list[tuple[str, str]] = []
        self.plane = ControlPlane(
            journal=journal,
            policy=SitePolicy(agent_timeout_s=60.0),
            pilots_dir=directory,
            incarnation=journal.begin_incarnation(),
            keys=self.keys,
            listener=Listener(gone=lambda pilot_id, why, _: self.gone.append((pilot_id, why))),
        )
        self._open: list[Agent] = []

    async def start(self) -> None:
        self.endpoint = await self.plane.start("127.0.0.1")

    def come(self, pilot_id: str, keys: KeyPair | None = None) -> Agent:
        agent = Agent(self.endpoint, self.keys, keys or self.agents[pilot_id])
        agent.connection.send(hello(pilot_id))
        self._open.append(agent)
        return agent

    async def stop(self) -> None:
        for agent in self._open:
            agent.connection.close()
        await self.plane.stop()

    async def have_come(self, *pilot_ids: str) -> None:
        for pilot_id in pilot_ids:
            self.come(pilot_id)
        await until(lambda: set(pilot_ids) <= self.plane.agents.connected.keys(), "they came")


journal = journal_at(100.0)


def _runs(heir: Heir, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        for pilot_id, pair in heir.agents.items():
            heir.plane.server.register(pilot_id, pair.public, "n1")
        await heir.start()
        try:
            await scenario()
        finally:
            await heir.stop()

    asyncio.run(main())


def test_agents_of_pilots_that_ended_before_are_told_to_go(
    tmp_path: Path, journal: Journal
) -> None:
    theirs, now_s = generate_pair(), 100.0
    pilot = PilotRecord(
        pilot_id="p000009", node="n1", job_id="7", public_key=theirs.public,
        requested_s=now_s, time_limit_s=60.0, owner="ada",
    )  # fmt: skip
    journal.append("pilot-requested", {}, pilots=[pilot])
    ended = replace(pilot, state=PilotState.ENDED, ended_s=now_s)
    journal.append("pilot-ended", {}, pilots=[ended])
    heir = Heir(journal, tmp_path)

    async def scenario() -> None:
        agent = heir.come("p000009", theirs)
        await until(lambda: agent.heard, "an answer")
        (told,) = agent.heard
        assert isinstance(told, Leave)
        assert told.reason == ENDED

    _runs(heir, scenario)


def test_machines_stand_still_until_the_agents_that_were_there_are_back(
    tmp_path: Path, journal: Journal
) -> None:
    boot_s = [1000.0]
    plane = ControlPlane(
        journal=journal,
        policy=SitePolicy(),
        pilots_dir=tmp_path,
        incarnation=1,
        keys=generate_pair(),
        listener=Listener(),
        awake=AwakeClock(lambda: boot_s[0]),
    )
    seen = []
    for at_s, missed in ((1005.0, ()), (1006.0, ("p1",)), (1009.0, ("p1",)), (1009.0, ())):
        boot_s[0] = at_s
        plane.server._missed = set(missed)
        seen.append(plane.steady())
    boot_s[0] = 1010.0
    assert [*seen, plane.steady()] == [1005.0, 1006.0, 1006.0, 1006.0, 1007.0]
    asyncio.run(plane.stop())


def test_if_most_do_not_come_the_daemon_is_the_one_cut_off(
    tmp_path: Path, journal: Journal
) -> None:
    heir = Heir(journal, tmp_path)

    async def scenario() -> None:
        await heir.have_come("p000001")
        heir.plane.adopt({"p000002", "p000003"})
        assert heir.plane.agents.away == {"p000002": "n1", "p000003": "n1"}
        assert set(heir.plane.agents.held) == set(PILOTS)
        assert heir.plane.server.reach.away == {"p000002", "p000003"}
        await heir.have_come("p000002", "p000003")
        assert heir.plane.agents.away == {}
        assert heir.plane.server.reach.away == set()
        assert heir.gone == []

    _runs(heir, scenario)


def test_one_that_does_not_come_is_silent(tmp_path: Path, journal: Journal) -> None:
    heir = Heir(journal, tmp_path)

    async def scenario() -> None:
        await heir.have_come("p000001", "p000002")
        heir.plane.adopt({"p000003"})
        assert heir.gone == [("p000003", "silent")]
        assert heir.plane.agents.away == {}

    _runs(heir, scenario)
