"""Agents among themselves: a typed question and its answer, for rosters' members only.

Each agent has a peer socket; its endpoint and public key are in every roster, so
that survivors can find each other while the daemon is away. The owner is
``trainers.agent``; ``ask`` is the other side.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Literal

import zmq
from pydantic import BaseModel, ConfigDict, ValidationError

from bftrainer.wire.keys import KeyPair
from bftrainer.wire.messages import SCHEMA
from bftrainer.wire.pump import SocketPump, has_input
from bftrainer.wire.router import CurveRouter, Origin

MAX_PEER_MESSAGE_BYTES = 256 * 1024


class WhoIs(BaseModel):
    """Which workers do you have, and how far are they?"""

    model_config = ConfigDict(extra="forbid", frozen=True)
    v: Literal[1] = SCHEMA
    type: Literal["whois"] = "whois"


class PeerWorker(BaseModel):
    """What an agent tells another about one of its workers."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    worker_id: str
    generation: int  # of the last Commit passed to it; 0 before the first
    step: int  # newest reported


class IAm(BaseModel):
    """Answer to ``WhoIs``."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    v: Literal[1] = SCHEMA
    type: Literal["i-am"] = "i-am"
    pilot_id: str
    workers: list[PeerWorker]


class PeerServer:
    """Answers agents whose key is in a roster we have seen, and nobody else."""

    def __init__(self, *, keys: KeyPair, answer: Callable[[], IAm]) -> None:
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
        """How often something was refused or dropped, by reason."""
        return self._router.counts

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
            WhoIs.model_validate_json(frame)
        except ValidationError:
            self.counts["malformed"] += 1
            return
        self._router.send(origin.route, self._answer().model_dump_json().encode())


async def ask(endpoint: str, *, public_key: str, keys: KeyPair, timeout_s: float) -> IAm | None:
    """Ask the agent at ``endpoint``; None when it does not answer in time."""
    answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.set(zmq.LINGER, 0)
    dealer.set(zmq.IPV6, int("[" in endpoint))
    dealer.set(zmq.MAXMSGSIZE, MAX_PEER_MESSAGE_BYTES)
    dealer.set(zmq.CURVE_SERVERKEY, public_key.encode("ascii"))
    dealer.set(zmq.CURVE_PUBLICKEY, keys.public.encode("ascii"))
    dealer.set(zmq.CURVE_SECRETKEY, keys.secret.encode("ascii"))
    dealer.connect(endpoint)
    dealer.send(WhoIs().model_dump_json().encode(), flags=zmq.DONTWAIT)

    def drain() -> None:
        while has_input(dealer):
            frame = dealer.recv_multipart()[-1]
            if not answered.done():
                answered.set_result(frame)

    pump = SocketPump(dealer, drain)
    try:
        return IAm.model_validate_json(await asyncio.wait_for(answered, timeout_s))
    except (TimeoutError, ValidationError):
        return None
    finally:
        pump.close()
        dealer.close(linger=0)
        context.term()
