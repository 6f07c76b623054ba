"""What a stranger sends to the store of a generation before, and a member after, its proof."""

from __future__ import annotations

from bftrainer.elastic.process.store import NONCE_BYTES, PROOF_BYTES, StoreServer
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings
from tests.support.strangers import say_to

_SET = b"\x01\x00\x04\x00\x00\x00\x05namevalue"
_GET = b"\x02\x00\x04\x00\x00\x00\x00name"


def _said_to_store(raw: bytes) -> None:
    """Its thread must live, and not one byte may be kept."""
    server = StoreServer("127.0.0.1")
    server.expect("a token")
    say_to(server, "bft-store", raw, greeting_bytes=NONCE_BYTES)
    assert not server._values


DOORS = (
    Door(
        name="generation-store",
        call=_said_to_store,
        inputs=bytestrings(_SET, _GET, bytes(PROOF_BYTES) + _SET),
        from_bytes=bytes,
    ),
)
