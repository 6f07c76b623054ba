"""Ends pilots: their agents are told first, then they are cancelled, then with force.

A message to the agent is the fastest way and costs the controller nothing. Cancels are made in a
background thread, so that nobody waits for the batch system.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.fleet.background import Background, ready_threads
from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.pilots.pilots import FORCE_AFTER_S, PilotBook
from bftrainer.fleet.wire.messages import Leave
from bftrainer.model.decision import Release

MOST_AT_ONCE: Final = 32  # users whose pilots are cancelled
TOLD_PATIENCE_S: Final = 0.3  # told agents normally leave within a tenth of this


class PilotEnds:
    """Releases pilots of one daemon."""

    def __init__(self, pilots: PilotBook, plane: ControlPlane, background: Background) -> None:
        self._pilots, self._plane, self._background = pilots, plane, background
        # Users can stop what is started as them; the cancels of others do not wait for it.
        self._threads = ready_threads(MOST_AT_ONCE if pilots.as_submitter else 1, "cancel")
        self._wanted: dict[str, dict[str, bool]] = {}  # user -> job id -> with force
        self._busy: set[str] = set()

    def release(self, releases: Sequence[Release]) -> None:
        """Ask pilots to leave; those with a connected agent by a message."""
        told = {
            r.pilot_id
            for r in releases
            if r.pilot_id in self._plane.agents.connected
            and self._plane.server.send(r.pilot_id, Leave(reason=r.reason))
        }
        self.cancel(self._pilots.release(releases, told))
        if told:
            self._background.run(self._see_off(told))

    def cancel(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Cancel in the background, starting at once."""
        for user, own in self._pilots.by_user(job_ids).items():
            wanted = self._wanted.setdefault(user, {})
            wanted.update({job_id: force or wanted.get(job_id, False) for job_id in own})
            if user not in self._busy:
                self._next(user)

    def _next(self, user: str) -> None:
        self._busy.discard(user)
        if wanted := self._wanted.pop(user, None):
            self._busy.add(user)
            loop = asyncio.get_running_loop()
            under_way = loop.run_in_executor(self._threads, self._cancel, wanted)
            under_way.add_done_callback(lambda _: self._next(user))
            self._background.run(under_way)

    def _cancel(self, wanted: Mapping[str, bool]) -> None:
        for force in (False, True):
            self._pilots.cancel(
                [i for i, is_forced in wanted.items() if is_forced is force], force=force
            )

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
        for one in ended:
            all_ = (self._pilots.on_explained, *tellers)
            for tell in (of_given_back,) if one.is_given_back else all_:
                tell(one.pilot_id, one.how)
            if one.is_mute and one.how.has_failed and not one.is_given_back:
                self._plane.trainers.on_agent_failed(one.pilot_id, one.how.reason)

    def close(self) -> None:
        """Wait for the cancels under way."""
        wanted, self._wanted = self._wanted, {}
        for left in wanted.values():
            self._threads.submit(self._cancel, left)
        self._threads.shutdown(wait=True, cancel_futures=False)

    async def _see_off(self, told: set[str]) -> None:
        for patience_s, force in ((TOLD_PATIENCE_S, False), (FORCE_AFTER_S, True)):
            await _let_pass(patience_s)
            stuck = self._pilots.job_ids(told & self._plane.agents.connected.keys())
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
