"""Ends pilots: their agents are told first, then they are cancelled, then with force.

A message to the agent is the fastest way and costs the controller nothing. Cancels are made in a
background thread, so that nobody waits for the batch system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Final

from bftrainer.batch.awake import AWAKE
from bftrainer.batch.batch_system import PilotObservation
from bftrainer.fleet.background import Background, ready_threads
from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.pilots.cancels import CancelOrder, CancelQueue
from bftrainer.fleet.pilots.pilots import FORCE_AFTER_S, PilotBook
from bftrainer.fleet.wire.messages import Leave
from bftrainer.model.decision import Release

MOST_AT_ONCE: Final = 32  # users whose pilots are cancelled
LOOK_EVERY_S: Final = 0.1  # whether pilots have left
TOLD_PATIENCE_S: Final = 0.3  # told agents normally leave within a tenth of this


class PilotEnds:
    """Releases pilots of one daemon."""

    def __init__(
        self,
        pilots: PilotBook,
        plane: ControlPlane,
        background: Background,
        poll_soon: Callable[[], object],
    ) -> None:
        """``poll_soon`` calls for a look that shows a change of this moment."""
        self._pilots, self._plane, self._background = pilots, plane, background
        self._poll_soon = poll_soon
        self._cancels = CancelQueue(pilots)
        # Users can stop what is started as them; the cancels of others do not wait for it.
        self._threads = ready_threads(MOST_AT_ONCE if pilots.as_submitter else 1, "cancel")

    def release(self, releases: Sequence[Release]) -> None:
        """Ask pilots to leave; those with a connected agent by a message."""
        pilot_ids: set[str] = set()  # of agents that hear of it
        for release in releases:
            if release.pilot_id in self._plane.agents.connected:
                message = Leave(reason=release.reason)
                if self._plane.server.send(release.pilot_id, message):
                    pilot_ids.add(release.pilot_id)
        self.cancel(self._pilots.release(releases, pilot_ids))
        if pilot_ids:
            self._background.run(self._see_off(pilot_ids))

    def cancel(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Cancel in the background, starting at once."""
        for user in self._cancels.add(job_ids, force=force):
            self._next(user)

    def _next(self, user: str) -> None:
        if order := self._cancels.next_order(user):
            loop = asyncio.get_running_loop()
            under_way = loop.run_in_executor(self._threads, self._cancel, order)
            under_way.add_done_callback(lambda _: self._cancelled(user, order))
            self._background.run(under_way)

    def _cancelled(self, user: str, order: CancelOrder) -> None:
        """Go on with what was asked for meanwhile; have a look show the ends nobody announces."""
        if self._cancels.ended(order, self._plane.agents.connected):
            self._poll_soon()
        self._next(user)

    def _cancel(self, order: CancelOrder) -> None:
        for force in (False, True):
            self._pilots.cancel(
                [i for i, is_forced in order.items() if is_forced is force], force=force
            )

    async def end_unheeded(self, patience_s: float) -> None:
        """Wait for pilots that were asked to leave; cancel with force those that do not.

        A signal reaches nobody on a node that lost its power while the controller was restarted:
        Slurm 22.05 goes on calling the job RUNNING, until its limit or until it is killed.
        """
        deadline_s = AWAKE() + patience_s
        while (job_ids := self._pilots.unheeded()) and AWAKE() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        self.cancel(job_ids, force=True)

    async def explain(
        self,
        looking: Executor,
        heard: Iterable[Callable[[str, PilotObservation], None]],
        of_given_back: Callable[[str, PilotObservation], None],
    ) -> None:
        """Learn how pilots ended that nobody of us asked to leave, and tell all who listen.

        Of those given back only ``of_given_back`` is told.
        """
        if not self._pilots.has_unexplained:
            return
        loop, tellers = asyncio.get_running_loop(), tuple(heard)
        ended = await loop.run_in_executor(looking, self._pilots.explanations)
        for pilot in ended:
            if pilot.is_given_back:
                of_given_back(pilot.pilot_id, pilot.how)
                continue
            for tell in (self._pilots.on_explained, *tellers):
                tell(pilot.pilot_id, pilot.how)
            if pilot.is_mute and pilot.how.has_failed:
                self._plane.trainers.on_agent_failed(pilot.pilot_id, pilot.how.reason)

    def close(self) -> None:
        """Wait for the cancels under way."""
        for order in self._cancels.remaining():
            self._threads.submit(self._cancel, order)
        self._threads.shutdown(wait=True, cancel_futures=False)

    async def _see_off(self, pilot_ids: set[str]) -> None:
        for patience_s, force in ((TOLD_PATIENCE_S, False), (FORCE_AFTER_S, True)):
            await _let_pass(patience_s)
            stuck = self._pilots.job_ids(pilot_ids & self._plane.agents.connected.keys())
            if not stuck:
                return
            self.cancel(stuck, force=force)


async def _let_pass(seconds: float) -> None:
    """Wait; once more if this loop comes as much too late: it has not read what agents answered."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + seconds
    await asyncio.sleep(seconds)
    if loop.time() - due_s > seconds:
        await asyncio.sleep(seconds)
