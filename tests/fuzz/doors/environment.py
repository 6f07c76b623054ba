"""What users bring along: files and outputs of preambles, and whom to notify."""

from __future__ import annotations

import tempfile

from bftrainer.api import admission
from bftrainer.cli.preamble import read_preamble
from bftrainer.model.errors import UsageError
from bftrainer.model.preamble import MAX_BYTES, why_not_started
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from bftrainer.model.trainer_spec import MAX_STRING_BYTES
from tests.fuzz.door import Door
from tests.fuzz.hostile import bytestrings, texts

_PATH = "/state/pilots/p1/preamble-0.sh"
_OUTPUT = (
    f"{_PATH}: line 3: module: command not found\nbftrainer: The preamble ended with status 127\n"
)


def _read(raw: bytes) -> None:
    with tempfile.NamedTemporaryFile(prefix="bft-fuzz-") as file:
        file.write(raw)
        file.flush()
        assert len(read_preamble(file.name).encode()) <= MAX_BYTES


def _why(text: str) -> None:
    why = why_not_started(text, 126, _PATH)
    assert why.startswith("BFT-1061: ")
    assert "\n" not in why
    assert _PATH not in why


def _notify(text: str) -> None:
    notify = text[:MAX_STRING_BYTES]
    if not admission.notification_fault(notify) and notify:
        spec = TrainerSpec(name="t", user="u", script="/s", notify=notify)
        record = TrainerRecord(
            trainer_id="t1", spec=spec, state=TrainerState.FAILED, submitted_s=0.0
        )
        argv, _ = admission.command_of(record, "/usr/sbin/sendmail")
        assert argv[0].startswith("/")


DOORS = (
    Door(
        name="preamble-file",
        call=_read,
        refuses_with=(UsageError,),
        inputs=bytestrings(b"module load x\n"),
        from_bytes=bytes,
    ),
    Door(name="preamble-output", call=_why, inputs=texts(_OUTPUT, "bftrainer: ")),
    Door(name="notify", call=_notify, inputs=texts("mail:a@b.c", "/bin/echo 'a b'")),
)
