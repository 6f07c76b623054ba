"""Sends a copy of a trainer's state to another agent's memory and fetches it.

One TCP connection per copy. The holder sends a nonce; one line requests ``put`` or ``get``, one
line answers; both are authenticated with the assignment's key. The bytes of a checkpoint follow
unencrypted, as gradients do, and end with a digest that the authenticated lines contain.
Standard library only: the worker calls ``put`` and ``get``, the agent serves
(``trainers.agent.replica_store``).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BufferedReader
from typing import Any

CONNECT_S = 3.0
PATIENCE_S = 10.0  # without a byte
MAX_LINE_BYTES = 4096
PIECE_BYTES = 1 << 20
_NUMBERS = frozenset({"incarnation", "generation", "step", "samples", "size_bytes"})


class CopyError(Exception):
    """The copy could not be sent or fetched; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """Description of a copy. ``order`` decides which of two is kept."""

    trainer_id: str
    incarnation: int
    generation: int
    token: str
    step: int
    samples: int
    size_bytes: int
    digest: str  # SHA-256 that closes the bytes, hex

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: a later generation is newer, whatever its step."""
        return (self.generation, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The trainer and generation that request a copy."""

    trainer_id: str
    generation: int  # the one that is being formed


# ---- lines -------------------------------------------------------------------------


def new_nonce() -> str:
    """Return a nonce, which makes a proof valid for one connection only."""
    return secrets.token_hex(16)


def proof(key: str, nonce: str, body: object) -> str:
    """Return the HMAC-SHA-256 of a body sent on the connection with this nonce."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hmac.new(key.encode(), f"{nonce}\n{text}".encode(), hashlib.sha256).hexdigest()


def is_proven(said: object, key: str, nonce: str, body: object) -> bool:
    """Whether a received value, which may be anything, is the proof of ``body``."""
    return hmac.compare_digest(str(said).encode(errors="replace"), proof(key, nonce, body).encode())


def facts_of(said: dict[str, Any]) -> CopyFacts:
    """Return the facts in a line.

    Raises:
        CopyError: fields are missing, unknown or of the wrong type.
    """
    numbers = [said.get(name) for name in _NUMBERS]
    if (
        said.keys() != CopyFacts.__annotations__.keys()
        or not all(type(number) is int and number >= 0 for number in numbers)
        or not all(isinstance(said[name], str) for name in said.keys() - _NUMBERS)
    ):
        raise CopyError("it sent an invalid message")
    return CopyFacts(**said)


def send_line(connection: socket.socket, body: dict[str, Any]) -> None:
    """Send one JSON object."""
    connection.sendall(json.dumps(body).encode() + b"\n")


def read_line(file: BufferedReader) -> dict[str, Any]:
    """Receive one JSON object.

    Raises:
        CopyError: the line is not one, or the connection was closed.
    """
    line = file.readline(MAX_LINE_BYTES)
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):  # a line may be deeply nested
        body = None
    if not isinstance(body, dict) or not line.endswith(b"\n"):
        raise CopyError("the connection was closed" if not line else "it sent an invalid message")
    return body


# ---- the worker's side ---------------------------------------------------------------


def put(
    address: tuple[str, int], key: str, facts: CopyFacts, parts: Sequence[bytes | memoryview]
) -> None:
    """Send a copy to a holder; complete there when this returns.

    Raises:
        CopyError: refused, or the holder is gone; what it held before is untouched.
    """
    with _asked(address, key, "put", asdict(facts)) as talk:
        for part in parts:
            for start in range(0, len(part), PIECE_BYTES):
                talk.connection.sendall(part[start : start + PIECE_BYTES])
        if _heard(talk.file, key, talk.nonce) != {"kept": facts.digest}:
            raise CopyError("it holds something else")


@contextmanager
def get(
    address: tuple[str, int], key: str, asker: Asker
) -> Iterator[tuple[CopyFacts, BufferedReader]]:
    """Yield the facts of a held copy and its bytes, which need not all be read.

    From then on the holder refuses copies of generations before the asker's.

    Raises:
        CopyError: there is none, or the holder is gone.
    """
    with _asked(address, key, "get", asdict(asker)) as talk:
        yield facts_of(talk.answer), talk.file


@dataclass(frozen=True, slots=True, kw_only=True)
class _Talk:
    connection: socket.socket
    file: BufferedReader
    nonce: str
    answer: dict[str, Any]


def _heard(file: BufferedReader, key: str, nonce: str) -> dict[str, Any]:
    line = read_line(file)
    if "refused" in line:
        raise CopyError(str(line["refused"]))
    answer = line.get("answer")
    if not isinstance(answer, dict) or not is_proven(line.get("proof"), key, nonce, answer):
        raise CopyError("it cannot prove that it is the holder")
    return answer


@contextmanager
def _asked(address: tuple[str, int], key: str, verb: str, what: dict[str, Any]) -> Iterator[_Talk]:
    try:
        with (
            socket.create_connection(address, CONNECT_S) as connection,
            connection.makefile("rb") as file,
        ):
            connection.settimeout(PATIENCE_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonce = new_nonce()
            asked = {"verb": verb, "what": what, "nonce": nonce}
            theirs = str(read_line(file).get("nonce"))
            send_line(connection, {**asked, "proof": proof(key, theirs, asked)})
            answer = _heard(file, key, nonce)
            yield _Talk(connection=connection, file=file, nonce=nonce, answer=answer)
    except OSError as problem:
        raise CopyError(f"it does not answer: {problem}") from None
