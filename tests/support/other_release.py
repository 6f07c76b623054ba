"""Records as another release would have written them."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from typing import Any

from bftrainer.trainer import TrainerRecord

_Newer: Any = make_dataclass(
    "TrainerRecord",
    [("unheard_of", int, 1)],
    bases=(TrainerRecord,),
    frozen=True,
    slots=True,
    kw_only=True,
)


def newer(record: TrainerRecord) -> TrainerRecord:
    """Return the record with a field that this release does not know."""
    made: TrainerRecord = _Newer(**{f.name: getattr(record, f.name) for f in fields(record)})
    return made
