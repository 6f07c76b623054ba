"""How a copy of a trainer's state gets into another agent's memory and back.

One TCP connection per copy. The holder says a nonce; one line asks to ``put`` or
``get``, proven with the assignment's key; one line answers, proven with the same key,
so neither side can be a stranger. The bytes of a checkpoint follow in the clear, as
gradients do, and close with a digest that the proven lines have named. Standard library
only: the worker calls ``put`` and ``get``, the agent serves (``trainers.agent.replica_store``).
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
    """The copy could not be made or had; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """What a copy is of. ``order`` decides which of two is kept."""

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
        """A later generation's is newer, whatever its step; no number is used twice."""
        return (self.generation, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """Who asks for a copy."""

    trainer_id: str
    generation: int  # the one that is being formed


# ---- lines -------------------------------------------------------------------------


def new_nonce() -> str:
    """Return what makes a proof good for one connection only."""
    return secrets.token_hex(16)


def proof(key: str, nonce: str, body: object) -> str:
    """Return the HMAC-SHA-256 of a body said on the connection with this nonce."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hmac.new(key.encode(), f"{nonce}\n{text}".encode(), hashlib.sha256).hexdigest()


def is_proven(said: object, key: str, nonce: str, body: object) -> bool:
    """Whether what was said, which may be anything, is the proof of that body."""
    return hmac.compare_digest(str(said).encode(errors="replace"), proof(key, nonce, body).encode())


def facts_of(said: dict[str, Any]) -> CopyFacts:
    """Return the facts of a line.

    Raises:
        CopyError: they are not all there, or of another kind.
    """
    numbers = [said.get(name) for name in _NUMBERS]
    if (
        said.keys() != CopyFacts.__annotations__.keys()
        or not all(type(number) is int and number >= 0 for number in numbers)
        or not all(isinstance(said[name], str) for name in said.keys() - _NUMBERS)
    ):
        raise CopyError("it speaks otherwise")
    return CopyFacts(**said)


def send_line(connection: socket.socket, body: dict[str, Any]) -> None:
    """Send one object."""
    connection.sendall(json.dumps(body).encode() + b"\n")


def read_line(file: BufferedReader) -> dict[str, Any]:
    """Return one object.

    Raises:
        CopyError: that is not what came.
    """
    line = file.readline(MAX_LINE_BYTES)
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):  # nested as deeply as a line is long
        body = None
    if not isinstance(body, dict) or not line.endswith(b"\n"):
        raise CopyError("the connection was closed" if not line else "it speaks otherwise")
    return body


# ---- the worker's side ---------------------------------------------------------------


def put(
    address: tuple[str, int], key: str, facts: CopyFacts, parts: Sequence[bytes | memoryview]
) -> None:
    """Bring a copy to a holder; complete there when this returns.

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
    """Yield the facts of a held copy and its bytes, to be read to their end or left.

    The holder then refuses copies of generations before the asker's.

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
