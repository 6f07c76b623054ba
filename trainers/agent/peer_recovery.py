"""Re-forms trainers that lose members while no daemon is running: the I/O of ``regroup``.

Sends surveys, promises and commits to peers and to own workers as ``regroup`` decides, and
answers the questions of peers. Called by ``trainers.agent.main``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from typing import Any

from bftrainer.elastic import protocol
from bftrainer.elastic.protocol import Commit, Member
from bftrainer.wire.keys import KeyPair
from bftrainer.wire.messages import TellWorker
from bftrainer.wire.peers import (
    Done,
    PassCommit,
    PeerStanding,
    Promise,
    Surveyed,
    SurveyTrainer,
    ask,
    refuses,
)
from trainers.agent.quorum import Absent, Answer, Answered, QuorumMember
from trainers.agent.regroup import AskPromise, Instruction, Note, PassOn, Regroup, Survey, TellOwn
from trainers.agent.workers import Workers

LOG = logging.getLogger("bftrainer.agent")
LOOK_S = 0.1  # between two probes while a worker is stuck
PROBE_S = 1.0  # otherwise: a thousand agents must not overload the daemon's host
CONNECT_LIMIT_S = 1.0
ANSWER_LIMIT_S = 3.0
AT_ONCE = 32  # concurrent questions; each has its own threads


class PeerRecovery:
    """Active from the loss of the daemon until one is connected again."""

    def __init__(
        self,
        *,
        pilot_id: str,
        daemon_endpoint: str,
        keys: KeyPair,
        workers: Workers,
        is_up: Callable[[], bool],
        was_in_touch: Callable[[], bool],
    ) -> None:
        self._pilot_id = pilot_id
        self._daemon_endpoint = daemon_endpoint
        self._keys = keys
        self._workers = workers
        self._is_up = is_up
        self._was_in_touch = was_in_touch
        self._is_orphaned = False  # the daemon's host refused the last connection
        self._me = ""
        self._machines: dict[str, Regroup] = {}
        self._watching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()
        self._limit = asyncio.Semaphore(AT_ONCE)

    def start(self, peer_endpoint: str) -> None:
        """Set our own endpoint, which identifies us in rosters."""
        self._me = peer_endpoint

    def daemon_lost(self) -> None:
        """Start to probe for a daemon, until one is connected."""
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())

    def news(self) -> None:
        """Note that a worker sent a message or ended."""
        self._news.set()

    async def _watch(self) -> None:
        while not self._is_up():
            refused = await refuses(self._daemon_endpoint, CONNECT_LIMIT_S)
            is_in_touch = self._was_in_touch() and not self._is_up()
            self._is_orphaned = refused is True and is_in_touch
            self._look()
            self._news.clear()
            is_stuck = any(w.is_stuck for t in self._workers.trainers() for w in self._own(t))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S if is_stuck else PROBE_S)
        self._is_orphaned = False
        self._machines.clear()

    def _look(self) -> None:
        for trainer_id in self._workers.trainers():
            machine = self._machine(trainer_id)
            own, now_s = self._own(trainer_id), time.monotonic()
            out = machine.advance(own, is_orphaned=self._is_orphaned, now_s=now_s)
            self._carry_out(machine, out)

    def _own(self, trainer_id: str) -> list[QuorumMember]:
        return self._workers.standings(trainer_id)

    def _machine(self, trainer_id: str) -> Regroup:
        if trainer_id not in self._machines:
            self._machines[trainer_id] = Regroup(
                trainer_id,
                me=self._me,
                origin=self._pilot_id,
                new_token=lambda: secrets.token_hex(16),
            )
        return self._machines[trainer_id]

    # ---- instructions of the state machine -------------------------------------------

    def _carry_out(self, machine: Regroup, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Survey():
                    self._begin(self._survey(machine, instruction))
                case AskPromise():
                    self._begin(self._ask_promise(machine, instruction))
                case PassOn():
                    self._begin(self._pass_on(machine, instruction))
                case TellOwn(worker_id=worker_id, body=body):
                    self._workers.tell(TellWorker(worker_id=worker_id, body=protocol.to_body(body)))
                case Note(text=text):
                    LOG.info("%s", text)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOG.error("a question to a peer failed", exc_info=task.exception())
        self.news()

    async def _survey(self, machine: Regroup, survey: Survey) -> None:
        machine.on_answer(survey.member.agent_endpoint, await self._answer(machine, survey))

    async def _answer(self, machine: Regroup, survey: Survey) -> Answer:
        member, endpoint = survey.member, survey.member.agent_endpoint
        if not endpoint or (refused := await refuses(endpoint, CONNECT_LIMIT_S)) is None:
            return Absent.SILENT
        if refused:
            return Absent.GONE
        generation, attempt = survey.stuck
        question = SurveyTrainer(
            trainer_id=machine.trainer_id, generation=generation, attempt=attempt
        )
        async with self._limit:
            answer = await ask(
                endpoint,
                question,
                Surveyed,
                public_key=member.agent_public_key,
                keys=self._keys,
                timeout_s=ANSWER_LIMIT_S,
            )
        if answer is None:
            return Absent.SILENT
        workers = tuple(_standing(w) for w in answer.workers)
        return Answered(is_orphaned=answer.is_orphaned, workers=workers)

    async def _ask_promise(self, machine: Regroup, asked: AskPromise) -> None:
        generation, attempt = asked.key
        question = Promise(
            trainer_id=machine.trainer_id,
            worker_id=asked.member.worker_id,
            generation=generation,
            attempt=attempt,
        )
        is_given = await self._ask(asked.member, question)
        now_s = time.monotonic()
        machine.on_promise(asked.member.worker_id, asked.key, is_given=is_given, now_s=now_s)

    async def _pass_on(self, machine: Regroup, order: PassOn) -> None:
        commit, worker_id = order.commit, order.member.worker_id
        question = PassCommit(
            trainer_id=machine.trainer_id, worker_id=worker_id, body=protocol.to_body(commit)
        )
        is_done = await self._ask(order.member, question)
        key = (commit.generation, commit.attempt)
        self._carry_out(machine, machine.on_passed(worker_id, key, is_done=is_done))

    async def _ask(self, member: Member, question: Promise | PassCommit) -> bool:
        async with self._limit:
            done = await ask(
                member.agent_endpoint,
                question,
                Done,
                public_key=member.agent_public_key,
                keys=self._keys,
                timeout_s=ANSWER_LIMIT_S,
            )
        if done is not None and done.refusal:
            LOG.info("%s refuses %s: %s", member.node, question.type, done.refusal)
        return done is not None and not done.refusal

    # ---- questions of peers -------------------------------------------------------------

    def surveyed(self, public_key: str, question: SurveyTrainer) -> Surveyed | Done:
        """Answer a survey; it also tells us that a peer has a stuck worker."""
        own = self._own(question.trainer_id)
        if own:
            if not any(_knows(worker, public_key) for worker in own):
                return Done(refusal="not a member's agent")
            machine = self._machine(question.trainer_id)
            machine.nudge((question.generation, question.attempt))
            self.news()
            own = [machine.with_promise(w) for w in own]
        return Surveyed(is_orphaned=self._is_orphaned, workers=[_spoken(w) for w in own])

    def promise(self, public_key: str, question: Promise) -> Done:
        """Answer a peer that wants to announce a generation."""
        worker = self._worker(question.trainer_id, question.worker_id)
        if not _knows(worker, public_key):
            return Done(refusal="not a member's agent")
        machine = self._machine(question.trainer_id)
        key = (question.generation, question.attempt)
        return Done(refusal=machine.promise(worker, key, is_orphaned=self._orphaned_now()))

    def pass_commit(self, public_key: str, question: PassCommit) -> Done:
        """Forward a peer's commit to the worker it is for."""
        worker = self._worker(question.trainer_id, question.worker_id)
        try:
            commit = protocol.from_body(question.body)
        except protocol.ProtocolError as problem:
            return Done(refusal=str(problem))
        if not isinstance(commit, Commit) or not _knows(worker, public_key):
            return Done(refusal="not a member's agent, or not a commit")
        machine = self._machine(question.trainer_id)
        refusal = machine.accept(worker, commit, is_orphaned=self._orphaned_now())
        if not refusal:
            self._workers.tell(TellWorker(worker_id=question.worker_id, body=question.body))
        return Done(refusal=refusal)

    def _orphaned_now(self) -> bool:
        return self._is_orphaned and not self._is_up()

    def _worker(self, trainer_id: str, worker_id: str) -> QuorumMember | None:
        return next((w for w in self._own(trainer_id) if w.worker_id == worker_id), None)


def _knows(worker: QuorumMember | None, public_key: str) -> bool:
    """Whether the agent with this key is in a roster of the worker."""
    commits = () if worker is None else (worker.commit, worker.entered)
    return any(m.agent_public_key == public_key for c in commits if c for m in c.members)


def _spoken(worker: QuorumMember) -> PeerStanding:
    return PeerStanding(
        worker_id=worker.worker_id,
        commit=None if worker.commit is None else protocol.to_body(worker.commit),
        entered=None if worker.entered is None else protocol.to_body(worker.entered),
        interrupted=worker.interrupted,
        ready=worker.ready,
        promised=worker.promised,
        step=worker.step,
        has_left=worker.has_left,
        has_finished=worker.has_finished,
    )


def _standing(spoken: PeerStanding) -> QuorumMember:
    return QuorumMember(
        worker_id=spoken.worker_id,
        commit=_commit(spoken.commit),
        entered=_commit(spoken.entered),
        interrupted=spoken.interrupted,
        ready=spoken.ready,
        promised=spoken.promised,
        step=spoken.step,
        has_left=spoken.has_left,
        has_finished=spoken.has_finished,
    )


def _commit(body: dict[str, Any] | None) -> Commit | None:
    """Return the commit in a body of an authenticated agent, None if it is not one."""
    if body is None:
        return None
    with contextlib.suppress(protocol.ProtocolError):
        message = protocol.from_body(body)
        return message if isinstance(message, Commit) else None
    return None
