"""Messages between agents: members of common rosters, and the way to the daemon.

Each agent has a peer socket, whose endpoint and public key are in every roster, so that
survivors find each other while no daemon is running. Used by ``trainers.agent``; ``ask`` is the
client side. Agents of an earlier release do not know the questions about regrouping and stay
silent, so a trainer with such a member is not re-formed without it.

Agents fail one by one; most of them at once fall silent only if the path to the daemon is broken,
or if their nodes lost power, which the batch system notices, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import zmq
from pydantic import (
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
)

from bftrainer.elastic.process.control import key_of
from bftrainer.fleet.wire.keys import KeyPair
from bftrainer.fleet.wire.messages import MAX_LISTED, SCHEMA, Count, Name, Strict, Words
from bftrainer.fleet.wire.router import CurveRouter, Origin, SocketPump, has_input
from bftrainer.ground import fields, protocol
from bftrainer.ground.protocol import Commit

MAX_PEER_MESSAGE_BYTES = 4 * 1024 * 1024  # a survey carries rosters


Number = Annotated[int, Field(ge=-1, le=fields.MOST)]  # -1: there was none
Key = tuple[Number, Number]  # generation and attempt
NO_KEY: Key = (-1, -1)
QUIET = 0.6  # of the timeout: agents that one cut silenced differ by a heartbeat


def _commit(said: Any) -> Commit:
    try:
        message = said if isinstance(said, Commit) else protocol.from_body(said)
    except protocol.ProtocolError as problem:
        raise ValueError(str(problem)) from None
    if not isinstance(message, Commit):
        raise ValueError("not a commit")  # noqa: TRY004  # as for any other invalid value
    return message


CommitBody = Annotated[Commit, PlainValidator(_commit), PlainSerializer(protocol.to_body)]


class _Message(Strict):
    v: Literal[1] = SCHEMA


class SurveyTrainer(_Message):
    """Ask for the status of a trainer's workers; one of ours is stuck with this number."""

    type: Literal["survey"] = "survey"
    trainer_id: Name
    generation: Count
    attempt: Count


class PeerStanding(Strict):
    """Status of one worker, as its agent knows it."""

    worker_id: Name
    commit: CommitBody | None = None  # the newest forwarded to it
    entered: CommitBody | None = None  # that of the generation it entered last
    interrupted: Key = NO_KEY  # the newest generation it reported broken
    ready: Key = NO_KEY  # the newest Prepare it answered ...
    # ... and the store it opened for that. Only its own agent has to know it.
    store_port: Annotated[int, Field(ge=0, le=65535, exclude=True)] = 0
    promised: Key = NO_KEY  # the newest number its agent promised to a peer
    step: Count = 0
    has_left: bool = False
    has_finished: bool = False

    @property
    def is_stuck(self) -> bool:
        """Return whether its generation is broken and it waits for a newer commit."""
        return self.commit is not None and self.interrupted >= key_of(self.commit)

    @property
    def newest(self) -> Key:
        """The greatest number used in any message to or from it."""
        greatest = max(self.interrupted, self.ready, self.promised)
        if self.commit is None:
            return greatest
        return max(greatest, key_of(self.commit))


class Surveyed(_Message):
    """Answer to ``SurveyTrainer``."""

    type: Literal["surveyed"] = "surveyed"
    is_orphaned: bool  # no daemon is running for this agent
    workers: Annotated[list[PeerStanding], Field(max_length=MAX_LISTED, fail_fast=True)]
    # Endpoints of members' agents that it cannot connect to.
    unreachable: Annotated[list[Name], Field(max_length=MAX_LISTED, fail_fast=True)] = Field(
        default_factory=list
    )

    @model_serializer(mode="wrap")
    def _without_unused(self, usual: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what agents of the release before do not know while it is unused."""
        fields: dict[str, Any] = usual(self)
        if not self.unreachable:
            fields.pop("unreachable", None)
        return fields


class Promise(_Message):
    """Refuse smaller numbers from now on, unless a daemon connects."""

    type: Literal["promise"] = "promise"
    trainer_id: Name
    worker_id: Name
    generation: Count
    attempt: Count


class PassCommit(_Message):
    """Forward this commit, whose number was promised, to a worker."""

    type: Literal["pass-commit"] = "pass-commit"
    trainer_id: Name
    worker_id: Name
    body: CommitBody


class Done(_Message):
    """Answer to ``Promise`` and ``PassCommit``: "" if done, otherwise why not."""

    type: Literal["done"] = "done"
    refusal: Words = ""


PeerQuestion = SurveyTrainer | Promise | PassCommit
PeerAnswer = Surveyed | Done
_QUESTIONS: TypeAdapter[PeerQuestion] = TypeAdapter(
    Annotated[PeerQuestion, Field(discriminator="type")]
)
_ANSWERS: TypeAdapter[PeerAnswer] = TypeAdapter(Annotated[PeerAnswer, Field(discriminator="type")])


class PeerServer:
    """Answers only agents whose key is in a roster we have seen.

    ``answer(public_key, question)`` gets the authenticated key; if it raises, the question is
    not answered.
    """

    def __init__(self, *, keys: KeyPair, answer: Callable[[str, PeerQuestion], PeerAnswer]) -> None:
        self._answer = answer
        self._known: set[str] = set()
        self._router = CurveRouter(
            keys=keys,
            max_message_bytes=MAX_PEER_MESSAGE_BYTES,
            is_allowed=self._known.__contains__,
            on_frame=self._receive,
        )
        self.counts = self._router.refusals.counts  # of dropped messages, by reason

    def start(self, host: str, ports: str = "") -> str:
        """Listen on a free port, within ``ports``, and return the endpoint; or BFT-1306."""
        return self._router.start(host, 0, ports)

    def allow(self, public_key: str) -> None:
        """Answer this key from now on."""
        self._known.add(public_key)

    def close(self) -> None:
        """Stop listening."""
        self._router.close()

    def _receive(self, origin: Origin, frame: bytes) -> None:
        try:
            question = _QUESTIONS.validate_json(frame)
        except ValidationError:
            self._router.refusals.refuse("malformed", "a peer", "not a question")
            return
        try:
            answer = self._answer(origin.public_key, question)
        except Exception as problem:  # noqa: BLE001  # must not end the agent
            self._router.refusals.refuse("failed", "a peer", repr(problem), has_traceback=True)
            return
        self._router.send(origin.route, answer.model_dump_json().encode())


async def ask(
    endpoint: str, question: PeerQuestion, *, public_key: str, keys: KeyPair, timeout_s: float
) -> PeerAnswer | None:
    """Ask the agent at ``endpoint``; None when no valid answer comes in time."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    try:
        _connect(dealer, endpoint, public_key, keys)
        dealer.send(question.model_dump_json().encode(), flags=zmq.DONTWAIT)
    except (zmq.ZMQError, ValueError):  # a roster that names no endpoint or no key
        dealer.close(linger=0)
        context.term()
        return None

    def drain() -> None:
        while has_input(dealer):
            frame = dealer.recv_multipart()[-1]
            if not answered.done():
                answered.set_result(frame)

    pump = SocketPump(dealer, drain)
    try:
        return _ANSWERS.validate_json(await asyncio.wait_for(answered, timeout_s))
    except (TimeoutError, ValidationError):
        return None
    finally:
        pump.close()
        dealer.close(linger=0)
        context.term()


def _connect(dealer: zmq.Socket[bytes], endpoint: str, public_key: str, keys: KeyPair) -> None:
    if not endpoint.startswith("tcp://"):
        raise ValueError("not an endpoint of ours")
    dealer.set(zmq.LINGER, 0)
    dealer.set(zmq.IPV6, int("[" in endpoint))
    dealer.set(zmq.MAXMSGSIZE, MAX_PEER_MESSAGE_BYTES)
    keys.prove(dealer, public_key)
    dealer.connect(endpoint)


async def knock(endpoint: str, timeout_s: float) -> Exception | None:
    """Connect to an endpoint's host and hang up; return why that failed, None: it did not."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        opening = asyncio.open_connection(host.strip("[]"), int(port))
        _, writer = await asyncio.wait_for(opening, timeout_s)
    except (OSError, ValueError, OverflowError) as problem:  # the last two: it is no endpoint
        return problem
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return None


async def refuses(endpoint: str, timeout_s: float) -> bool | None:
    """Return whether an endpoint's host says that nobody listens there; None if it is silent.

    Only the host's own refusal is evidence that a process has ended (RFC 9293, 3.5.2: a
    connection attempt to a port that nobody listens at is reset); silence is not.
    """
    problem = await knock(endpoint, timeout_s)
    if problem is None:
        return False
    return True if isinstance(problem, ConnectionRefusedError) else None


@dataclass(slots=True, kw_only=True)
class Reach:
    """Agents that the daemon cannot reach although nothing says that they are lost."""

    timeout_s: float
    away: set[str] = field(default_factory=set)  # pilots
    since_s: float | None = None  # when the first of them was not heard any more
    _back_s: float | None = None  # since when most are heard again

    def is_cut_off(self, ages_s: Iterable[float]) -> bool:
        """Return whether two or more agents, and more than half of all, were not heard for long."""
        ages = list(ages_s)
        n_unheard = len(self.away) + sum(age_s > QUIET * self.timeout_s for age_s in ages)
        return n_unheard >= 2 and 2 * n_unheard > len(self.away) + len(ages)

    def left(self, pilot_id: str, heard_s: float) -> None:
        """An agent was last heard then; it is away from now on."""
        self.away.add(pilot_id)
        if self.since_s is None or heard_s < self.since_s:
            self.since_s = heard_s

    def drop(self, pilot_ids: Collection[str]) -> None:
        """These are back, or lost."""
        self.away.difference_update(pilot_ids)
        if not self.away:
            self.since_s = self._back_s = None

    def lost(self, ages_s: Iterable[float], now_s: float) -> list[str]:
        """Return those that did not come back although most others did ``timeout_s`` ago."""
        if not self.away or self.is_cut_off(ages_s):
            self._back_s = None
            return []
        if self._back_s is None:
            self._back_s = now_s
        if now_s - self._back_s <= self.timeout_s:
            return []
        return sorted(self.away)
