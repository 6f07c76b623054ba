"""What a stranger sends to the store of a generation before, and a member after, its proof."""

from __future__ import annotations

import contextlib
import socket
import threading

from bftrainer.elastic.store import NONCE_BYTES, PROOF_BYTES, StoreServer
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings

_SET = b"\x01\x00\x04\x00\x00\x00\x05namevalue"
_GET = b"\x02\x00\x04\x00\x00\x00\x00name"
PATIENCE_S = 5.0


def _said_to_store(raw: bytes) -> None:
    """Its thread must live, and not one byte may be kept."""
    server = StoreServer("127.0.0.1")
    server.expect("a token")
    threads = [t for t in threading.enumerate() if t.name == "bft-store"]
    try:
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as stranger:
            stranger.recv(NONCE_BYTES, socket.MSG_WAITALL)
            with contextlib.suppress(OSError):
                stranger.sendall(raw)
                stranger.shutdown(socket.SHUT_WR)
                stranger.recv(1)
        if server._values or not all(t.is_alive() for t in threads):
            raise AssertionError("a stranger was served")
    finally:
        server.close()
        for thread in threads:
            thread.join(PATIENCE_S)


DOORS = (
    Door(
        name="generation-store",
        call=_said_to_store,
        inputs=bytestrings(_SET, _GET, bytes(PROOF_BYTES) + _SET),
        from_bytes=bytes,
    ),
)
