"""A user's own daemon: its address file, requests from other hosts, and what sacctmgr prints."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bftrainer.api import address
from bftrainer.api.remote_server import request_of
from slurm_plugins import own_site
from slurm_plugins.own_pilots import PilotSize
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings, texts

_ADDRESS = (
    b'{"host": "login1", "boot_id": "b", "pid": 7, "job_id": "", '
    b'"endpoint": "tcp://10.0.0.1:4000", "public_key": "k", "nonce": "n"}'
)
_PILOT = PilotSize(amounts={"node": 1, "cpu": 4, "gres/gpu": 2})
_ROW = "lab||normal|3|6|||gres/gpu=10,node=5||1-00:00:00\n"


def _address(raw: bytes) -> None:
    with tempfile.TemporaryDirectory(prefix="bft-fuzz-") as directory:
        path = Path(directory) / "daemon.json"
        path.write_bytes(raw)
        if (found := address.read(Path(directory))) is not None:
            assert isinstance(found.pid, int)
            address.is_gone(found, {})


def _limits(text: str) -> None:
    for row in own_site.rows(text, own_site.ASSOCIATION):
        for limit in own_site.node_limits(row, "X", (_PILOT,)):
            assert limit.n_nodes >= 0


DOORS = (
    Door(name="address-file", call=_address, inputs=bytestrings(_ADDRESS), from_bytes=bytes),
    Door(
        name="far-request",
        call=request_of,
        refuses_with=(ValueError, LookupError, TypeError, RecursionError),
        inputs=bytestrings(b'{"method": "GET", "path": "/v1/status"}\n{}'),
        from_bytes=bytes,
    ),
    Door(name="slurm-limits", call=_limits, inputs=texts(_ROW)),
)
