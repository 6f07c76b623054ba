"""What users ask of submitted trainers, and write behind --begin, --array and --after."""

from __future__ import annotations

import contextlib

from bftrainer.api.admission import check_spec
from bftrainer.api.documents import CodecError, schema
from bftrainer.api.http_messages import read_change
from bftrainer.cli.option_values import parse_array, parse_begin, parse_ids
from bftrainer.cli.status import parse_columns
from bftrainer.model.errors import BftError, UsageError
from bftrainer.model.trainer import TrainerSpec
from tests.fuzz.door import Door
from tests.fuzz.hostile import as_json, bytestrings, documents, texts

_CHANGE = {
    "schema": schema("change"),
    "change": {"is_held": True, "n_min": 1, "n_max": 8, "weight": 2.5, "name": "train"},
}
_LONGEST = 128 * 1024  # characters of a word on the command line, execve(2)
_SPEC = TrainerSpec(name="n", user="u", script="/s")


def _change(body: bytes) -> None:
    """Take a change as the daemon does: whatever passes is a spec that passes admission."""
    spec = read_change(body).applied(_SPEC)
    check_spec(spec)
    assert read_change(body).applied(spec) is spec


def _options(text: str) -> None:
    for parse in (parse_begin, parse_array, parse_ids, parse_columns):
        with contextlib.suppress(UsageError):
            parse(text[:_LONGEST])


DOORS = (
    Door(
        name="api-change",
        call=_change,
        refuses_with=(CodecError, BftError),
        inputs=documents(_CHANGE).map(as_json) | bytestrings(as_json(_CHANGE)),
        from_bytes=bytes,
    ),
    Door(
        name="when-options",
        call=_options,
        inputs=texts(
            "now+2hours", "2031-12-24T22:30", "0-99:3,7%10", "t1,t22", "id,state", "22:30"
        ),
    ),
)
