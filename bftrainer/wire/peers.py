"""Questions and answers between agents, for members of common rosters only.

Each agent has a peer socket, whose endpoint and public key are in every roster, so that
survivors find each other while no daemon is running. Used by ``trainers.agent``; ``ask`` is the
client side. Agents of an earlier release do not know the questions about regrouping and stay
silent, so a trainer with such a member is not re-formed without it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

import zmq
from pydantic import Field, TypeAdapter, ValidationError

from bftrainer.elastic import fields
from bftrainer.wire.keys import KeyPair
from bftrainer.wire.messages import MAX_LISTED, SCHEMA, Count, Name, Strict, Words
from bftrainer.wire.pump import SocketPump, has_input
from bftrainer.wire.router import CurveRouter, Origin

MAX_PEER_MESSAGE_BYTES = 4 * 1024 * 1024  # a survey carries rosters


Number = Annotated[int, Field(ge=-1, le=fields.MOST)]  # -1: there was none
Key = tuple[Number, Number]  # generation and attempt


class _Message(Strict):
    v: Literal[1] = SCHEMA


class WhoIs(_Message):
    """Ask for the agent's workers and their steps."""

    type: Literal["whois"] = "whois"


class PeerWorker(Strict):
    """A worker in an agent's answer."""

    worker_id: Name
    generation: Count  # of the last Commit forwarded to it; 0 before the first
    step: Count  # newest reported


class IAm(_Message):
    """Answer to ``WhoIs``."""

    type: Literal["i-am"] = "i-am"
    pilot_id: Name
    workers: Annotated[list[PeerWorker], Field(max_length=MAX_LISTED, fail_fast=True)]


class SurveyTrainer(_Message):
    """Ask for the status of a trainer's workers; one of ours is stuck with this number."""

    type: Literal["survey"] = "survey"
    trainer_id: Name
    generation: Count
    attempt: Count


class PeerStanding(Strict):
    """Status of one worker: numbers are (generation, attempt), commits the bodies forwarded."""

    worker_id: Name
    commit: dict[str, Any] | None = None
    entered: dict[str, Any] | None = None
    interrupted: Key = (-1, -1)
    ready: Key = (-1, -1)
    promised: Key = (-1, -1)
    step: Count = 0
    has_left: bool = False
    has_finished: bool = False


class Surveyed(_Message):
    """Answer to ``SurveyTrainer``."""

    type: Literal["surveyed"] = "surveyed"
    is_orphaned: bool  # no daemon is running for this agent
    workers: Annotated[list[PeerStanding], Field(max_length=MAX_LISTED, fail_fast=True)]


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
    body: dict[str, Any]


class Done(_Message):
    """Answer to ``Promise`` and ``PassCommit``: "" if done, otherwise why not."""

    type: Literal["done"] = "done"
    refusal: Words = ""


PeerQuestion = WhoIs | SurveyTrainer | Promise | PassCommit
PeerAnswer = IAm | Surveyed | Done
_QUESTIONS: TypeAdapter[PeerQuestion] = TypeAdapter(
    Annotated[PeerQuestion, Field(discriminator="type")]
)
_ANSWERS: TypeAdapter[PeerAnswer] = TypeAdapter(Annotated[PeerAnswer, Field(discriminator="type")])
A = TypeVar("A", IAm, Surveyed, Done)


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

    @property
    def counts(self) -> Counter[str]:
        """Number of refused or dropped messages, by reason."""
        return self._router.refusals.counts

    def start(self, host: str) -> str:
        """Listen on a free port and return the endpoint."""
        return self._router.start(host, 0)

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
    endpoint: str,
    question: PeerQuestion,
    kind: type[A],
    *,
    public_key: str,
    keys: KeyPair,
    timeout_s: float,
) -> A | None:
    """Ask the agent at ``endpoint``; None when no answer of ``kind`` comes in time."""
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
        answer = _ANSWERS.validate_json(await asyncio.wait_for(answered, timeout_s))
    except (TimeoutError, ValidationError):
        return None
    else:
        return answer if isinstance(answer, kind) else None
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
    dealer.set(zmq.CURVE_SERVERKEY, public_key.encode("ascii"))
    dealer.set(zmq.CURVE_PUBLICKEY, keys.public.encode("ascii"))
    dealer.set(zmq.CURVE_SECRETKEY, keys.secret.encode("ascii"))
    dealer.connect(endpoint)


async def refuses(endpoint: str, timeout_s: float) -> bool | None:
    """Whether nobody listens at an endpoint: its host says so. None when it says nothing.

    Only the host's own refusal is evidence that a process has ended (RFC 9293, 3.5.2: a
    connection attempt to a port that nobody listens at is reset); silence is not.
    """
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), int(port)), timeout_s
        )
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError, OverflowError):  # or it is no endpoint
        return None
    writer.close()
    return False
