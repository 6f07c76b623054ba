"""What agents say to the daemon, and the daemon to agents."""

from __future__ import annotations

from hypothesis import strategies as st

from bftrainer.fleet.trainers.reported_workers import judge
from bftrainer.fleet.wire.messages import (
    MAX_MESSAGE_BYTES,
    Hello,
    WireError,
    decode_from_agent,
    decode_to_agent,
)
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents
from tests.support.snapshots import record

_SAID = (
    {"type": "hello", "pilot_id": "p000001", "node": "n1", "address": "127.0.0.1", "pid": 7,
     "peer_endpoint": "tcp://127.0.0.1:4000", "peer_public_key": "k" * 40, "workers": [
         {"worker_id": "t1-1", "trainer_id": "t1", "pid": 9, "latest": [{"type": "warm"}]}]},
    {"type": "heartbeat", "pilot_id": "p000001", "workers": ["t1-1"], "incarnation": 1},
    {"type": "worker-said", "worker_id": "t1-1", "body": {"type": "left"}, "incarnation": 1},
    {"type": "worker-exited", "worker_id": "t1-1", "returncode": -9, "cause": "killed"},
)  # fmt: skip
_ASKED = (
    {"type": "welcome", "heartbeat_s": 1.0, "lease_s": 30.0, "interpreters": ["/usr/bin/python3"]},
    {"type": "tell-worker", "worker_id": "t1-1", "body": {"type": "commit", "generation": 3}},
)

# What a long Hello may be full of: begin, what is repeated, end.
_WORKER = b'"workers":[{"worker_id":"t1-1-1","trainer_id":"t1","pid":1,'
_FILLINGS = (
    (b'"more":[', b"[],", b"1]}"),
    (b'"node":"', b"n", b'"}'),
    (b'"workers":[', b"{},", b"1]}"),
    (b'"workers":[', b'{"worker_id":"t1-1-1","trainer_id":"t1","pid":1},', b"1]}"),
    (_WORKER + b'"latest":[', b"{},", b"{}]}]}"),
    (_WORKER + b'"latest":[', b'{"type":"Warm","warm_up_s":1},', b"{}]}]}"),
    (_WORKER + b'"commit":{"x":[', b"[],", b"1]}}]}"),
    (_WORKER + b'"commit":{"type":"Commit","generation":1,"attempt":1,"token":"","members":[',
     b'{"worker_id":"t1-1-1","rank":0,"node":"n","address":"a"},', b"1]}}]}"),
    (b'"copies":[',
     b'{"trainer_id":"t1","generation":1,"step":1,"samples":1,"size_bytes":1,"age_s":1},', b"1]}"),
)  # fmt: skip


def _full(filling: tuple[bytes, bytes, bytes], n_bytes: int) -> bytes:
    begin, again, end = filling
    said = {name: value for name, value in _SAID[0].items() if name != "workers"}
    frame = as_json({"v": 1, "incarnation": 0, **said}).replace(b": ", b":").replace(b", ", b",")
    whole = frame[:-1] + b"," + begin
    return whole + again * max(0, (n_bytes - len(whole) - len(end)) // len(again)) + end


def _greet(raw: bytes) -> None:
    """Read a Hello, and judge what it says of workers."""
    said = decode_from_agent(raw)
    if isinstance(said, Hello):
        judge({said.pilot_id: said.workers}, {"t1": record("t1")})


DOORS = (
    Door(
        name="wire-long-hello",
        call=_greet,
        refuses_with=(WireError,),
        inputs=st.tuples(
            st.sampled_from(_FILLINGS),
            st.integers(0, MAX_MESSAGE_BYTES) | st.integers(60_000, 70_000),
        ).map(lambda drawn: _full(*drawn)),
        from_bytes=bytes,
    ),
    Door(
        name="wire-from-agent",
        call=decode_from_agent,
        refuses_with=(WireError,),
        inputs=documents(*_SAID).map(as_json) | bytestrings(*map(as_json, _SAID)),
        from_bytes=bytes,
    ),
    Door(
        name="wire-to-agent",
        call=decode_to_agent,
        refuses_with=(WireError,),
        inputs=documents(*_ASKED).map(as_json) | bytestrings(*map(as_json, _ASKED)),
        from_bytes=bytes,
    ),
)
