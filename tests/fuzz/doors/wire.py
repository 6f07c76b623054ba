"""What agents say to the daemon, and the daemon to agents."""

from __future__ import annotations

from bftrainer.wire.messages import WireError, decode_from_agent, decode_to_agent
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents

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

DOORS = (
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
