"""Claims of a plan → pilots in the queue.

A pilot is opened for each claim at once, so that the next decision counts on it. Files,
journal and ``sbatch`` are left to one thread: the loop waits for none of them, and no cancel
waits for a submission. All requests of a plan are one transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from bftrainer.actuate.agents import AgentBook, AgentFiles
from bftrainer.actuate.pilot_refusals import PilotRefusals
from bftrainer.actuate.pilots import Pilot, PilotBook
from bftrainer.errors import BatchSystemError, BftError
from bftrainer.journal.errors import JournalError
from bftrainer.journal.records import PilotRecord
from bftrainer.model.decision import Plan
from bftrainer.model.trainer import TrainerRecord
from bftrainer.wire.keys import KeyPair, generate_pair

T = TypeVar("T")
LOG = logging.getLogger("bftrainer.pilots")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPilot:
    """A pilot that is to be asked for."""

    pilot: Pilot
    keys: KeyPair
    gpus: int  # of its node
    interpreter: str  # what it most likely has to run


class Claiming:
    """Asks for pilots; one thread, in order."""

    def __init__(
        self,
        *,
        pilots: PilotBook,
        agents: AgentBook,
        refusals: PilotRefusals,
        address: str,
        register: Callable[[str, str, str], None],
        on_gone: Callable[[str], None],
        cancel: Callable[[Sequence[str]], object],
    ) -> None:
        """Take what is needed for it.

        Args:
            pilots: where they are open.
            agents: writes their files.
            refusals: counts the requests that were refused.
            address: of the data plane of agents; "": each finds its own.
            register: lets the agent of a pilot in: its id, its key and its node.
            on_gone: told of pilots that come to nothing.
            cancel: cancels jobs.
        """
        self._pilots, self._agents, self._refusals = pilots, agents, refusals
        self._address, self._register = address, register
        self._on_gone, self._cancel = on_gone, cancel
        self._thread = ThreadPoolExecutor(1, "claim")

    def open(
        self, plan: Plan, pilot_ids: Sequence[str], trainers: Mapping[str, TrainerRecord]
    ) -> list[WantedPilot]:
        """Open a pilot for each claim of a plan, under these ids."""
        gpus = {node.name: node.gpus for node in plan.pool}
        requests = []
        for pilot_id, claim in zip(pilot_ids, plan.claims, strict=True):
            keys, trainer = generate_pair(), trainers.get(claim.for_trainer)
            pilot = self._pilots.open(pilot_id, claim, keys.public)
            self._register(pilot_id, keys.public, claim.node)
            requests.append(
                WantedPilot(
                    pilot=pilot,
                    keys=keys,
                    gpus=gpus.get(claim.node, 0),
                    interpreter=trainer.spec.interpreter if trainer else "",
                )
            )
        return requests

    async def ask(self, requests: Sequence[WantedPilot]) -> None:
        """Ask for some pilots; each is open, and ends when it cannot be had."""
        records = [request.pilot.record for request in requests]
        try:
            files = await self._beside(partial(self._prepare, requests, records))
        except BftError as problem:
            if not isinstance(problem, JournalError):  # that one is said elsewhere
                self._refusals.refused(problem.cause)
                LOG.warning("no more pilots are asked for at the moment: %s", problem)
            for request in requests:
                self._end(request.pilot, problem.cause)
            return
        for request in requests:
            request.pilot.is_written = True
        await asyncio.gather(*map(self._launch, requests, files))

    def close(self) -> None:
        """Wait for what has been asked for; nothing more is."""
        self._thread.shutdown(wait=True, cancel_futures=False)

    def _prepare(
        self, requests: Sequence[WantedPilot], records: Sequence[PilotRecord]
    ) -> list[AgentFiles]:
        # Files first: a number whose directory is there is not given a second time.
        files = [
            self._agents.write_files(
                record.pilot_id, record.node, one.keys, self._address, one.gpus, one.interpreter
            )
            for one, record in zip(requests, records, strict=True)
        ]
        self._pilots.write_down(records)
        return files

    async def _launch(self, request: WantedPilot, files: AgentFiles) -> None:
        pilot = request.pilot
        if _is_leaving(pilot):
            self._end(pilot, pilot.record.reason)
            return
        launch = partial(self._pilots.launch, pilot, files.argv, files.log, request.gpus)
        try:
            job_id = await self._beside(launch)
        except BatchSystemError as problem:
            self._refusals.refused(f"The batch system refuses our pilots: {problem.cause}")
            LOG.warning("pilot %s refused: %s", pilot.record.pilot_id, problem)
            self._end(pilot, f"The batch system refused it ({problem.cause})")
            return
        self._refusals.accepted()
        self._pilots.launched(pilot, job_id)
        if _is_leaving(pilot):  # its release overtook the batch system's answer
            self._cancel([job_id])

    def _end(self, pilot: Pilot, reason: str) -> None:
        self._pilots.end(pilot.record.pilot_id, reason)
        self._on_gone(pilot.record.pilot_id)

    async def _beside(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _is_leaving(pilot: Pilot) -> bool:
    """Whether it is now; it may have been released while we waited."""
    return pilot.is_leaving
