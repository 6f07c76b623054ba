"""What any process of the host sends to Horovod's front: heads, and whole connections."""

from __future__ import annotations

from bftrainer.elastic.horovod.world import MAX_BODY_BYTES, Front, SingleStore, asked_of
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings
from tests.support.strangers import say_to

_PUT = (
    b"PUT /word:0/global/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nvalue",
    b"GET /word:0/rank_and_size/w1:0 HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n\r\n",
)


def _head(raw: bytes) -> None:
    asked = asked_of(raw, "word")
    if asked is not None:
        assert raw.startswith((f"{asked.method} /word:0/").encode("latin-1"))
        assert 0 <= asked.body_bytes <= MAX_BODY_BYTES


def _said(raw: bytes) -> None:
    """Its thread must live, and nothing may be set."""
    store = SingleStore()
    front = Front(store, prefix="p", place="0,1,0,1,0,1")
    say_to(front, "bft-horovod-front", raw)
    assert not store._values


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
