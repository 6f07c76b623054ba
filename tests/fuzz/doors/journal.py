"""What the daemon reads back from its own state directory, when a disk or a person changed it."""

from __future__ import annotations

import contextlib
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, insert
from sqlalchemy.pool import StaticPool

from bftrainer.fleet.wire.endpoint import AgentConfig, port_in
from bftrainer.fleet.wire.keys import load_pair
from bftrainer.journal import mark, projection
from bftrainer.journal.errors import JournalError
from bftrainer.journal.lock import held
from bftrainer.journal.projection import Projection
from bftrainer.journal.tables import NO_HASH, entry_hash, verify
from bftrainer.model.canonical import CanonicalError, decode, parse
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerRecord
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents

_MARK = mark.encode(mark.Mark(writes=3, seq=7, sha256="a" * 64, incarnation=1, last_pilot=5))
_LOCK = b'{"pid": 4711, "host": "login1"}\n'
_KEYS = {"public": "k" * 40, "secret": "s" * 40}
_AGENT = {
    "pilot_id": "p000001", "daemon_endpoint": "tcp://127.0.0.1:4000",
    "daemon_public_key": "k" * 40, "key_file": "/s/agent.key", "state_dir": "/s", "node": "n1",
    "incarnation": 2, "end_s": None, "heartbeat_s": 1.0, "gpus": 0, "interpreters": ["/python"],
}  # fmt: skip
_SPEC = {"type": "TrainerSpec", "name": "a", "user": "ada", "script": "/a.py"}
_TRAINER = {
    "type": "TrainerRecord", "trainer_id": "t1", "spec": _SPEC, "state": "queued",
    "submitted_s": 1.0,
}  # fmt: skip
_PILOT = {
    "type": "PilotRecord", "pilot_id": "p000001", "node": "n1", "job_id": None, "public_key": "k",
    "requested_s": 1.0, "time_limit_s": 60.0, "owner": "ada", "state": "requested",
}  # fmt: skip
_ROWS = (
    {"kind": "start", "payload": {"incarnation": 1}, "trainers": [], "pilots": []},
    {"kind": "submit", "payload": {"trainer_id": "t1"}, "trainers": [_TRAINER], "pilots": []},
    {"kind": "pilot-id", "payload": {"pilot_id": "p000001"}, "trainers": [], "pilots": []},
    {"kind": "x", "payload": {}, "trainers": [_TRAINER], "pilots": [_PILOT]},
)


def _as_agent_json(raw: bytes) -> object:
    return AgentConfig.load(_private(raw))


def _as_key(raw: bytes) -> object:
    return load_pair(_private(raw))


_FOLDER = tempfile.TemporaryDirectory(prefix="bft-fuzz-")


def _private(raw: bytes) -> Path:
    path = Path(_FOLDER.name) / "file"
    path.write_bytes(raw)
    path.chmod(0o600)
    return path


def _as_row(raw: bytes) -> object:
    """Read a journal of one entry, whose checksum fits whatever is in it."""
    parts = raw.decode("utf-8", "surrogateescape").split("\0")
    kind, payload, trainers, pilots = (*parts, "", "", "", "")[:4]
    row = {"seq": 1, "at_s": 1.0, "incarnation": 1, "kind": kind, "payload": payload}
    row |= {"trainers": trainers, "pilots": pilots}
    sha256 = entry_hash(NO_HASH, row)
    database = sqlite3.connect(":memory:", check_same_thread=False)
    engine = create_engine("sqlite://", creator=lambda: database, poolclass=StaticPool)
    with engine.begin() as connection:
        projection.metadata.create_all(connection)
        try:
            connection.execute(insert(projection.entries), row | {"sha256": sha256})
        except UnicodeEncodeError:  # SQLite's text is UTF-8
            return None
        meta = {"head_seq": "1", "head_sha256": sha256, **_counters(row)}
        connection.execute(
            insert(projection.meta), [{"key": k, "value": v} for k, v in meta.items()]
        )
        return verify(connection, "journal.db")


def _counters(row: dict[str, Any]) -> dict[str, str]:
    """What the entry makes of them, so that more than the counters is looked at."""
    sums = Projection()
    with contextlib.suppress(Exception):
        sums.add(row)
    return {"incarnation": str(sums.incarnation), "last_pilot": str(sums.last_pilot)}


_rows = documents(*_ROWS).map(
    lambda row: b"\0".join(
        value.encode("utf-8", "surrogatepass") if isinstance(value, str) else as_json(value)
        for value in (row.values() if isinstance(row, dict) else [row])
    )
)


def _as_records(raw: bytes) -> object:
    """Read a trainer and a pilot of any release: what cannot be read runs as nobody."""
    plain = parse(raw)
    if not isinstance(plain, dict) or not {"trainer", "pilot"} <= plain.keys():
        return None
    trainer, pilot = projection.trainer_of(plain["trainer"]), projection.pilot_of(plain["pilot"])
    said = plain["trainer"].get("spec")
    whose = said.get("user") if isinstance(said, dict) else None
    assert trainer.state.is_final or trainer.spec.user == whose
    if plain["pilot"].get("user", "") != pilot.user:
        assert pilot.user == "?"
    return trainer, pilot


_OF_USER = {**_PILOT, "user": "ada"}

DOORS = (
    Door(
        name="journal-old-records",
        call=_as_records,
        refuses_with=(CanonicalError, ValueError),  # the latter: not the id of a pilot
        inputs=documents({"trainer": _TRAINER, "pilot": _OF_USER}).map(as_json),
        from_bytes=bytes,
    ),
    Door(
        name="journal-mark",
        call=mark.decode,
        inputs=bytestrings(_MARK),
        from_bytes=bytes,
    ),
    Door(
        name="journal-row",
        call=_as_row,
        refuses_with=(JournalError,),
        inputs=_rows,
        from_bytes=bytes,
    ),
    Door(
        name="canonical-parse",
        call=parse,
        refuses_with=(CanonicalError,),
        inputs=documents(*_ROWS).map(as_json) | bytestrings(*map(as_json, _ROWS)),
        from_bytes=bytes,
    ),
    Door(
        name="canonical-record",
        call=lambda raw: decode(raw, TrainerRecord),
        refuses_with=(CanonicalError,),
        inputs=documents(_TRAINER).map(as_json) | bytestrings(as_json(_TRAINER)),
        from_bytes=bytes,
    ),
    Door(
        name="endpoint-file",
        call=port_in,
        inputs=bytestrings(b"tcp://127.0.0.1:4000", b"tcp://[::1]:4000\n"),
        from_bytes=bytes,
    ),
    Door(
        name="lock-file",
        call=lambda raw: held(Path("/state"), raw),
        inputs=bytestrings(_LOCK),
        from_bytes=bytes,
    ),
    Door(
        name="agent-json",
        call=_as_agent_json,
        refuses_with=(BftError,),
        inputs=documents(_AGENT).map(as_json) | bytestrings(as_json(_AGENT)),
        from_bytes=bytes,
    ),
    Door(
        name="key-file",
        call=_as_key,
        refuses_with=(BftError,),
        inputs=documents(_KEYS).map(as_json) | bytestrings(as_json(_KEYS)),
        from_bytes=bytes,
    ),
)
