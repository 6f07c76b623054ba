"""Pilots at the batch system: requests for a plan, what polls show of them, and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.fleet.background import Background
from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.pilots.pilots import STARTS_S, PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.pilots.requests import Claiming, WantedPilot
from bftrainer.fleet.pilots.strays import StrayPilots
from bftrainer.fleet.release import PilotEnds
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import PilotRecord
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import Plan

Teller = Callable[[str, PilotObservation], None]


class PilotTraffic:
    """The pilots of one daemon; used in the event loop."""

    def __init__(
        self,
        *,
        journal: Journal,
        pilots: PilotBook,
        strays: StrayPilots,
        plane: ControlPlane,
        agent_address: str,
        on_ended: Callable[[str], None],
        poll_soon: Callable[[], object],
    ) -> None:
        """Wire the requests and ends of pilots.

        Args:
            journal: gives their numbers.
            pilots: the daemon's.
            strays: pilots of its state directory that are not in its journal.
            plane: its agents and trainers.
            agent_address: of the data plane of agents; "": each finds its own.
            on_ended: hears of a pilot that is no more, or was not obtained.
            poll_soon: calls for a look that shows a change of this moment.
        """
        self._journal, self._plane, self._on_ended = journal, plane, on_ended
        self._poll_soon = poll_soon
        self.pilots, self._strays = pilots, strays
        self._background = Background()
        self.refusals = PilotRefusals()
        self.refusals.as_submitter = pilots.as_submitter
        self.refusals.follow(pilots, lambda: plane.trainers.records)
        self.ends = PilotEnds(pilots, plane, self._background, poll_soon)
        self._claiming = Claiming(
            pilots=pilots,
            agents=plane.agents,
            refusals=self.refusals,
            address=agent_address,
            register=plane.server.register,
            on_gone=on_ended,
            cancel=self.ends.cancel,
        )
        pilots.on_absent = self._forget

    def recognised(self, snapshot: Snapshot) -> Snapshot:
        """Return a poll's snapshot with our pilots marked."""
        self.refusals.polled(snapshot.closed)
        return self.pilots.recognised(snapshot)

    def observe(self, snapshot: Snapshot, began_s: float) -> None:
        """Process what a poll shows of pilots, which was begun then (clock of the awake)."""
        for pilot_id in self.pilots.observe(snapshot, began_s):
            self._on_ended(pilot_id)

    async def explain(
        self, polling: Executor, tellers: Iterable[Teller], of_given_back: Teller
    ) -> None:
        """Learn in the polling thread how pilots ended, and tell all who listen."""
        await self.ends.explain(polling, tellers, of_given_back)

    def cancel_leftovers(self, snapshot: Snapshot) -> None:
        """Cancel pilots that should be over, and those that nobody knows of."""
        if overdue := self.pilots.overdue():
            self.ends.cancel(overdue, force=True)
        if strays := self._strays.to_cancel(snapshot, self.pilots.pilots):
            self.ends.cancel(strays)

    def request(self, plan: Plan) -> None:
        """Request a pilot for each claim, in the background."""
        if plan.claims:
            pilot_ids = self._journal.next_pilot_ids(len(plan.claims), above=self._strays.greatest)
            requests = self._claiming.open(plan, pilot_ids, self._plane.trainers.records)
            self._background.run(self._claiming.ask(requests))
            self._background.run(self._look_for(requests))

    async def _look_for(self, requests: Sequence[WantedPilot]) -> None:
        """Have a look show who has the nodes of pilots that have not started: nobody tells."""
        await asyncio.sleep(STARTS_S)
        if any(request.pilot.awaits_agent for request in requests):
            self._poll_soon()

    def close(self) -> None:
        """Wait for the cancels and requests under way."""
        self.ends.close()
        self._claiming.close()

    def _forget(self, record: PilotRecord) -> None:
        self._background.run(self._claiming.forget(record))
