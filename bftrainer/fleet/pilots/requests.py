"""Requests pilots for the claims of a plan.

A pilot is opened for each claim at once, so that the next decision counts on it. Files, journal
and ``sbatch`` run in a background thread, so the event loop does not wait, nor does a cancel for
a submission. All requests of a plan are one transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bftrainer.batch.batch_system import PilotRequest
from bftrainer.fleet.background import ready_threads
from bftrainer.fleet.pilots.agents import AgentBook, AgentFiles
from bftrainer.fleet.pilots.launches import LaunchAnswers
from bftrainer.fleet.pilots.pilots import Pilot, PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.runtimes.base import template_of
from bftrainer.fleet.wire.keys import KeyPair, generate_pair
from bftrainer.journal.errors import JournalError
from bftrainer.journal.projection import PilotRecord
from bftrainer.model.decision import Plan
from bftrainer.model.errors import BatchSystemError, BftError
from bftrainer.model.trainer import TrainerRecord

LOG = logging.getLogger("bftrainer.pilots")
MOST_AT_ONCE, MOST_OF_USER = 32, 4  # submissions of pilots as their users


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPilot:
    """A pilot to request."""

    pilot: Pilot
    keys: KeyPair
    gpus: int  # of its node
    trainer: TrainerRecord | None  # that it is for


class Claiming:
    """Requests pilots, in order where they run as the daemon."""

    def __init__(
        self,
        *,
        pilots: PilotBook,
        agents: AgentBook,
        refusals: PilotRefusals,
        address: str,  # of the data plane of agents; "": each finds its own
        register: Callable[[str, str, str], None],  # admits a pilot's agent: id, key, node
        on_gone: Callable[[str], None],  # with pilots that were not obtained
        cancel: Callable[[Sequence[str]], object],
    ) -> None:
        self._pilots, self._agents, self._refusals = pilots, agents, refusals
        self._address, self._register = address, register
        self._on_gone, self._cancel = on_gone, cancel
        self._answers = LaunchAnswers(pilots, refusals)
        refusals.where = agents.places
        self._thread = ready_threads(1, "claim")
        # The home of one user may hang, and users may stop their sbatch.
        self._launching = ready_threads(MOST_AT_ONCE if pilots.as_submitter else 1, "launch")

        self._turns: dict[str, asyncio.Semaphore] = {}  # by user
        self._is_closed = False

    def open(
        self, plan: Plan, pilot_ids: Sequence[str], trainers: Mapping[str, TrainerRecord]
    ) -> list[WantedPilot]:
        """Open a pilot for each claim of a plan, with these ids."""
        gpus = {node.name: node.gpus for node in plan.pool}
        requests = []
        claims = self._refusals.tried(plan.claims, trainers)
        for pilot_id, claim in zip(pilot_ids, claims, strict=False):  # as many ids as in the plan
            keys, user, trainer = generate_pair(), "", trainers.get(claim.for_trainer)
            if self._pilots.as_submitter:
                if trainer is None or not trainer.spec.user:
                    continue  # never as anybody else
                user = trainer.spec.user
            pilot = self._pilots.open(pilot_id, claim, keys.public, user)
            self._register(pilot_id, keys.public, claim.node)
            requests.append(
                WantedPilot(pilot=pilot, keys=keys, gpus=gpus.get(claim.node, 0), trainer=trainer)
            )
        return requests

    async def ask(self, requests: Sequence[WantedPilot]) -> None:
        """Request opened pilots; those that fail are ended."""
        loop = asyncio.get_running_loop()
        try:
            files = await loop.run_in_executor(self._thread, self._prepare, requests)
        except BftError as problem:
            if not isinstance(problem, JournalError):  # journal errors are reported elsewhere
                self._refusals.refused(problem.cause)
            for request in requests:
                self._end(request.pilot, problem.cause)
            return
        for request in requests:
            request.pilot.is_written = True
        await asyncio.gather(*map(self._launch_in_turn, requests, files))

    async def forget(self, record: PilotRecord) -> None:
        """Remove what a launch left with the pilot's user, as it is known to have no job."""
        if record.user and not self._is_closed:
            forget, loop = self._pilots.system.forget_pilot, asyncio.get_running_loop()
            async with self._turns.setdefault(record.user, asyncio.Semaphore(MOST_OF_USER)):
                await loop.run_in_executor(self._launching, forget, record.user, record.pilot_id)

    def close(self) -> None:
        """Wait for requests under way; no more are made."""
        self._is_closed = True
        for threads in (self._thread, self._launching):
            threads.shutdown(wait=True, cancel_futures=False)

    def _prepare(self, requests: Sequence[WantedPilot]) -> list[AgentFiles]:
        # Files first: a number whose directory exists is never reused.
        files = []
        for request in requests:
            record, interpreter = request.pilot.record, ""
            if request.trainer is not None:
                interpreter = template_of(request.trainer.spec)
            files.append(
                self._agents.write_files(
                    record.pilot_id,
                    record.node,
                    request.keys,
                    self._address,
                    request.gpus,
                    interpreter,
                    record.user,
                )
            )
        self._pilots.write_down([request.pilot.record for request in requests])
        return files

    async def _launch_in_turn(self, request: WantedPilot, files: AgentFiles) -> None:
        user = request.pilot.record.user
        async with self._turns.setdefault(user, asyncio.Semaphore(MOST_OF_USER)):
            if not self._is_closed:
                await self._launch(request, files)

    async def _launch(self, request: WantedPilot, files: AgentFiles) -> None:
        pilot, record = request.pilot, request.pilot.record
        if not self._answers.is_still_wanted(pilot):
            self._on_gone(record.pilot_id)
            return
        account = ""
        if request.trainer is not None:
            account = request.trainer.spec.account
        job = PilotRequest(
            pilot_id=record.pilot_id,
            node=record.node,
            time_limit_s=record.time_limit_s,
            agent_argv=files.argv,
            log_path=files.log,
            gpus=request.gpus,
            user=record.user,
            files=files.contents,
            account=account,
            part=record.part,
        )
        launch, loop = self._pilots.system.launch_pilot, asyncio.get_running_loop()
        try:
            job_id = await loop.run_in_executor(self._launching, launch, job)
        except BatchSystemError as problem:
            if self._answers.failed(pilot, problem, request.trainer):
                self._on_gone(record.pilot_id)
            return
        if to_cancel := self._answers.accepted(pilot, job_id, request.trainer):
            self._cancel(to_cancel)

    def _end(self, pilot: Pilot, reason: str) -> None:
        self._pilots.end(pilot.record.pilot_id, reason)
        self._on_gone(pilot.record.pilot_id)
