"""What any process of the host sends to Horovod's front: heads, and whole connections."""

from __future__ import annotations

import contextlib
import socket
import threading

from bftrainer.elastic.horovod.world import MAX_BODY_BYTES, Front, SingleStore, asked_of
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings

_PUT = (
    b"PUT /word:0/global/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nvalue",
    b"GET /word:0/rank_and_size/w1:0 HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n\r\n",
)
PATIENCE_S = 5.0


def _head(raw: bytes) -> None:
    asked = asked_of(raw, "word")
    if asked is not None:
        assert raw.startswith((f"{asked.method} /word:0/").encode("latin-1"))
        assert 0 <= asked.body_bytes <= MAX_BODY_BYTES


def _said(raw: bytes) -> None:
    """Its thread must live, and nothing may be set."""
    store = SingleStore()
    front = Front(store, prefix="p", place="0,1,0,1,0,1")
    threads = [t for t in threading.enumerate() if t.name == "bft-horovod-front"]
    try:
        where = ("127.0.0.1", front.port)
        with socket.create_connection(where, PATIENCE_S) as stranger, contextlib.suppress(OSError):
            stranger.sendall(raw)
            stranger.shutdown(socket.SHUT_WR)
            stranger.recv(1)
        if store._values or not all(t.is_alive() for t in threads):
            raise AssertionError("a stranger was served")
    finally:
        front.close()
        for thread in threads:
            thread.join(PATIENCE_S)


DOORS = (
    Door(
        name="horovod-front",
        call=_said,
        inputs=bytestrings(*_PUT),
        from_bytes=bytes,
    ),
    Door(
        name="horovod-head",
        call=_head,
        refuses_with=(ValueError,),
        inputs=bytestrings(*_PUT),
        from_bytes=bytes,
    ),
)
