"""Records as another release would have written them."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from typing import Any, get_type_hints

from bftrainer.trainer import TrainerRecord

_Newer: Any = make_dataclass(
    "TrainerRecord",
    [("unheard_of", int, 1)],
    bases=(TrainerRecord,),
    frozen=True,
    slots=True,
    kw_only=True,
)
_Older: Any = make_dataclass(
    "TrainerRecord",
    [(n, hint) for n, hint in get_type_hints(TrainerRecord).items() if n != "last_generation"],
    frozen=True,
    slots=True,
    kw_only=True,
)


def newer(record: TrainerRecord) -> TrainerRecord:
    """Return the record with a field that this release does not know."""
    made: TrainerRecord = _Newer(**{f.name: getattr(record, f.name) for f in fields(record)})
    return made


def older(record: TrainerRecord) -> TrainerRecord:
    """Return the record without a field that this release has."""
    made: TrainerRecord = _Older(**{f.name: getattr(record, f.name) for f in fields(_Older)})
    return made
