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
from collections.abc import Callable
from functools import partial

from bftrainer.elastic.process.control import key_of
from bftrainer.fleet.background import Background
from bftrainer.fleet.wire import peers
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.messages import TellWorker
from bftrainer.ground import protocol
from trainers.agent.regroup import Absent, Ask, Instruction, Regroup, TellOwn
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
        daemon_endpoint: Callable[[], str],
        keys: KeyPair,
        workers: Workers,
        silent: Callable[[str], frozenset[str]],
        is_up: Callable[[], bool],
        was_in_touch: Callable[[], bool],
    ) -> None:
        self._pilot_id = pilot_id
        self._daemon_endpoint = daemon_endpoint
        self._keys = keys
        self._workers = workers
        self._silent = silent  # of a trainer: agents that this node cannot connect to
        self._is_up = is_up
        self._was_in_touch = was_in_touch
        self._is_orphaned = False  # the daemon's host refused the last connection
        self._me = ""
        self._machines: dict[str, Regroup] = {}
        self._watching: asyncio.Task[None] | None = None
        self._background = Background()
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
            is_refused = await peers.refuses(self._daemon_endpoint(), CONNECT_LIMIT_S)
            is_in_touch = self._was_in_touch() and not self._is_up()
            self._is_orphaned = is_refused is True and is_in_touch
            self._look()
            self._news.clear()
            is_stuck = any(map(self._has_stuck_worker, self._workers.trainers()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), LOOK_S if is_stuck else PROBE_S)
        self._is_orphaned = False
        self._machines.clear()

    def _look(self) -> None:
        for trainer_id in self._workers.trainers():
            machine = self._machine(trainer_id)
            instructions = machine.advance(
                self._own(trainer_id),
                is_orphaned=self._is_orphaned,
                now_s=time.monotonic(),
                silent=self._silent(trainer_id),
            )
            self._carry_out(machine, instructions)

    def _has_stuck_worker(self, trainer_id: str) -> bool:
        return any(worker.is_stuck for worker in self._own(trainer_id))

    def _own(self, trainer_id: str) -> list[peers.PeerStanding]:
        silent = self._silent(trainer_id)
        return [_with_cut(worker, silent) for worker in self._workers.standings(trainer_id)]

    def _machine(self, trainer_id: str) -> Regroup:
        if (machine := self._machines.get(trainer_id)) is None:
            token = partial(secrets.token_hex, 16)
            machine = Regroup(trainer_id, me=self._me, origin=self._pilot_id, new_token=token)
            self._machines[trainer_id] = machine
        return machine

    # ---- instructions of the state machine -------------------------------------------

    def _carry_out(self, machine: Regroup, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Ask():
                    self._background.run(self._ask(machine, instruction))
                case TellOwn(worker_id=worker_id, body=body):
                    self._workers.tell(TellWorker(worker_id=worker_id, body=protocol.to_body(body)))
                case str():
                    LOG.info("%s", instruction)

    async def _ask(self, machine: Regroup, asked: Ask) -> None:
        try:
            answer = await self._answer(asked)
            self._carry_out(machine, machine.on_answer(asked, answer, time.monotonic()))
        finally:
            self.news()

    async def _answer(self, asked: Ask) -> peers.Surveyed | peers.Done | Absent:
        member, question = asked.member, asked.question
        if isinstance(question, peers.SurveyTrainer):  # whether the agent is gone matters
            is_refused = await peers.refuses(member.agent_endpoint, CONNECT_LIMIT_S)
            if is_refused:
                return Absent.GONE
            if is_refused is None:
                return Absent.SILENT
        async with self._limit:
            answer = await peers.ask(
                member.agent_endpoint,
                question,
                public_key=member.agent_public_key,
                keys=self._keys,
                timeout_s=ANSWER_LIMIT_S,
            )
        if isinstance(answer, peers.Done) and answer.refusal:
            LOG.info("%s refuses %s: %s", member.node, question.type, answer.refusal)
        return Absent.SILENT if answer is None else answer

    # ---- questions of peers -------------------------------------------------------------

    def answer(self, public_key: str, question: peers.PeerQuestion) -> peers.PeerAnswer:
        """Answer the agent with this key; a survey also says that it has a stuck worker."""
        workers = self._own(question.trainer_id)
        is_orphaned = self._is_orphaned and not self._is_up()
        if not workers and isinstance(question, peers.SurveyTrainer):
            return peers.Surveyed(is_orphaned=is_orphaned, workers=[])
        if not any(_knows(worker, public_key) for worker in workers):
            return peers.Done(refusal="not a member's agent")
        machine = self._machine(question.trainer_id)
        answer, instructions = machine.answer(workers, question, is_orphaned=is_orphaned)
        self._carry_out(machine, instructions)
        self.news()
        return answer


def _with_cut(worker: peers.PeerStanding, silent: frozenset[str]) -> peers.PeerStanding:
    """A worker that waits for a member which cannot be reached is stuck before it says so."""
    commit = worker.commit
    if commit is None or all(m.agent_endpoint not in silent for m in commit.members):
        return worker
    return worker.model_copy(update={"interrupted": max(worker.interrupted, key_of(commit))})


def _knows(worker: peers.PeerStanding, public_key: str) -> bool:
    for commit in filter(None, (worker.commit, worker.entered)):
        if any(member.agent_public_key == public_key for member in commit.members):
            return True
    return False
