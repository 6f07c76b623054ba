"""What a stranger says to the port at which an agent takes copies, and a holder to a worker."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
from typing import Any, cast

from bftrainer.elastic import replica_transfer
from bftrainer.elastic.replica_transfer import CopyError
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents
from trainers.agent.replica_store import CopyHolder

_NONCE = "0" * 32
_FACTS = {
    "trainer_id": "t1", "incarnation": 1, "generation": 3, "token": "x", "step": 7, "samples": 56,
    "size_bytes": 100, "digest": "0" * 64,
}  # fmt: skip
_PUT = {"verb": "put", "what": _FACTS, "nonce": _NONCE, "proof": "0" * 64}
_KEY = "k" * 64


def _file(raw: bytes) -> io.BufferedReader:
    return cast("io.BufferedReader", io.BytesIO(raw))


def _said_to_holder(line: bytes) -> None:
    holder = CopyHolder(limit_bytes=lambda: 1 << 20)
    holder.hold("t1", _KEY, 3)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        holder._answer(ours, _file(line))


def _proven_to_holder(what: dict[str, Any]) -> None:
    """A member of the trainer, who has the key, may be of any release."""
    holder = CopyHolder(limit_bytes=lambda: 1 << 20)
    holder.hold("t1", _KEY, 3)
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("rb") as heard:
        thread = threading.Thread(target=holder._talk, args=(ours,))
        holder._talks.acquire()
        thread.start()
        nonce = str(replica_transfer.read_line(heard)["nonce"])
        asked = {"verb": "put", "what": what, "nonce": _NONCE}
        with contextlib.suppress(OSError, CopyError):
            replica_transfer.send_line(
                theirs, {**asked, "proof": replica_transfer.proof(_KEY, nonce, asked)}
            )
            theirs.shutdown(socket.SHUT_WR)
            replica_transfer.read_line(heard)
        thread.join(5.0)
        if thread.is_alive():
            raise AssertionError("the holder still talks")


DOORS = (
    Door(
        name="copy-holder",
        call=_said_to_holder,
        refuses_with=(CopyError,),
        inputs=(documents(_PUT).map(as_json) | bytestrings(as_json(_PUT))).map(lambda s: s + b"\n"),
        from_bytes=bytes,
    ),
    Door(
        name="copy-holder-proven",
        call=_proven_to_holder,
        refuses_with=(CopyError,),
        inputs=documents(_FACTS).map(lambda what: what if isinstance(what, dict) else {"x": what}),
    ),
    Door(
        name="copy-line",
        call=lambda raw: replica_transfer.facts_of(
            replica_transfer.read_line(cast("io.BufferedReader", io.BytesIO(raw)))
        ),
        refuses_with=(CopyError,),
        inputs=(documents(_FACTS).map(as_json) | bytestrings(as_json(_FACTS))).map(
            lambda s: s + b"\n"
        ),
        from_bytes=bytes,
    ),
)
