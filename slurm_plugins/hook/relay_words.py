"""What a relay says to the daemon: lines of the hook's file, or that it has none.

Written by ``relay`` on a controller's host, read by ``relayed`` on the daemon's. Keys are shown to
administrators in hexadecimal, which no shell, YAML or unit file takes for something else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationError
from zmq.utils import z85

from bftrainer.batch.tail import MOST_BYTES, MOST_LINE_BYTES
from bftrainer.fleet.wire.messages import Seconds, Strict, Words

KEY_HEX_CHARS = 64
BEAT_S = 2.0  # between two words of a relay
SILENT_S = 3.5 * BEAT_S  # then it is lost
MOST_FRAME_BYTES = 8 * MOST_BYTES  # JSON may write one byte as six

Line = Annotated[str, Field(max_length=MOST_LINE_BYTES)]


class RelayError(Exception):
    """A frame that no relay of ours sends."""


class RelayWord(Strict):
    """One message of a relay; without lines it says that the relay is there."""

    v: Literal[1] = 1
    sent_s: Seconds  # monotonic clock of the relay's host
    lines: tuple[Line, ...] = Field(default=(), max_length=MOST_BYTES)
    is_too_much: bool = False  # some lines were skipped
    why_deaf: Words = ""  # it cannot read the hook's file ...
    is_waiting: bool = False  # ... as there is none yet: its controller was never in charge


def encode(word: RelayWord) -> bytes:
    """Return the frame."""
    return word.model_dump_json().encode("utf-8", "replace")


def decode(frame: bytes) -> RelayWord:
    """Read a frame.

    Raises:
        RelayError: it is malformed, or has more than a relay reads at once.
    """
    try:
        word = RelayWord.model_validate_json(frame)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise RelayError(f"{where}: {first['msg']}") from problem
    if sum(map(len, word.lines)) > MOST_BYTES:
        raise RelayError("more lines than a relay reads at once")
    return word


def shown(key: str) -> str:
    """Return a public key as administrators see it."""
    return z85.decode(key).hex()


def key_of(text: str) -> str:
    """Return the public key that an administrator gave.

    Raises:
        ValueError: it is none.
    """
    if len(text) != KEY_HEX_CHARS:
        raise ValueError(f"a public key has {KEY_HEX_CHARS} hexadecimal digits")
    return z85.encode(bytes.fromhex(text)).decode("ascii")
