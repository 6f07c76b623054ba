"""What a relay of the hook says, in whatever order and time."""

from __future__ import annotations

from hypothesis import strategies as st

from bftrainer.batch.tail import MOST_BYTES
from slurm_plugins.hook.relay import MOST_FRAME_BYTES, RelayError, RelayWord, decode, encode
from slurm_plugins.hook.relay_receiver import Repeats
from slurm_plugins.hook.squeue_row import ClusterFacts
from slurm_plugins.hook.watch import Heard
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents

_LINES = (
    "submit\t1000\t0\tbatch\t4\t\t\t\t10\ta&b\tn[1-2]\tgres:gpu:2\t0\t\t\t\t",
    "end\t1000\t17\tbatch\tn[1-3]",
    "modify\t1000\t17\tbatch\t",
)
_SAID = {"v": 1, "sent_s": 5.0, "lines": list(_LINES), "is_too_much": False, "why_deaf": "why"}
_WORDS = (
    encode(RelayWord(sent_s=5.0, lines=_LINES)),
    encode(RelayWord(sent_s=5.0, why_deaf="no file")),
    b'{"v":1,"sent_s":1.0,"lines":["' + b'","' * 20_000 + b'"]}',
)


def _hear(frame: bytes) -> None:
    repeats = Repeats()
    try:
        word = decode(frame[:MOST_FRAME_BYTES])
    except RelayError:
        return
    assert sum(map(len, word.lines)) <= MOST_BYTES
    fresh = [line for line in word.lines[:200] if not repeats.is_repeated(line, b"a", 1.0)]
    Heard("bf", lambda: ClusterFacts(cpus_per_node=4)).announcements(
        fresh, is_too_much=word.is_too_much
    )


DOORS = (
    Door(
        name="hook-relay",
        call=_hear,
        inputs=st.one_of(bytestrings(*_WORDS), documents(_SAID).map(as_json)),
        from_bytes=lambda raw: raw,
    ),
)
