"""Records as another release would have written them."""

from __future__ import annotations

from dataclasses import fields, make_dataclass
from typing import Any, TypeVar, get_type_hints

R = TypeVar("R")


def newer(record: R) -> R:
    """Return the record, of any class, with a field that this release does not know."""
    cls: Any = type(record)
    return _as(record, [("unheard_of", int, 1)], bases=(cls,))


def older(record: R, lacks: str = "last_generation") -> R:
    """Return the record without a field that this release has."""
    hints = get_type_hints(type(record))
    return _as(record, [(name, hint) for name, hint in hints.items() if name != lacks])


def _as(record: R, columns: list[Any], **more: Any) -> R:
    name = type(record).__name__
    cls: Any = make_dataclass(name, columns, frozen=True, slots=True, kw_only=True, **more)
    known = {field.name for field in fields(record)}  # type: ignore[arg-type]  # a dataclass
    values = {f.name: getattr(record, f.name) for f in fields(cls) if f.name in known}
    made: R = cls(**values)
    return made
