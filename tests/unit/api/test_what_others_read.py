"""Every text that a trainer's view can hold: which of them another user is told.

The view is built from the types, so that a new field that may hold words of a script is here on the
day it is written, whether or not somebody thought of those who must not read it.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal

from bftrainer.api.privacy import for_peer
from bftrainer.api.service import Peer
from bftrainer.model.views import TrainerView

STRANGER = Peer(pid=1, uid=54321, user="stranger")
# What docs/howto/operate.md, "Who sees what", tells everybody; with why where it is not plain.
TOLD = {
    "planned_nodes", "requested_nodes", "observed_nodes", "unheard_nodes",
    "gpus.node",
    "waits",  # on which trainers, and since when: sentences of the daemon
    "record.trainer_id",
    "record.workers",  # ids of the daemon
    "record.waits_for",
    "record.failing.node",
    "record.progress.backend",
}  # fmt: skip


def filled(kind: Any, path: str) -> Any:
    """Return a value of a type whose texts are all their own paths."""
    parts = typing.get_args(kind)
    if parts:
        return _filled_parts(kind, parts, path)
    if kind is str:
        return f"<{path}>"
    if dataclasses.is_dataclass(kind):
        return _filled_record(kind, path)
    if issubclass(kind, enum.Enum):
        return next(iter(kind))
    return kind(1)


def _filled_parts(kind: Any, parts: tuple[Any, ...], path: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        parts = tuple(part for part in parts if part is not type(None))
    if origin is Literal:
        return parts[0]
    if origin is tuple:
        kinds = parts[:1] if parts[-1] is Ellipsis else parts
        return tuple(filled(part, path) for part in kinds)
    return filled(parts[0], path)  # one of several, or with an annotation


def _filled_record(kind: Any, path: str) -> Any:
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    return kind(**{name: filled(hints[name], f"{path}.{name}".lstrip(".")) for name in names})


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from texts_in(getattr(value, field.name))
    elif isinstance(value, tuple):
        for inside in value:
            yield from texts_in(inside)


def paths_in(view: TrainerView) -> set[str]:
    return {text.strip("<>") for text in texts_in(view) if text.startswith("<")}


def test_others_are_told_what_the_page_says_and_no_more() -> None:
    view = filled(TrainerView, "")
    everything = paths_in(view)
    assert {"record.diverged.cause", "record.remarks.cause", "trouble"} <= everything
    told = paths_in(for_peer(view, STRANGER))
    of_record = {path for path in told if not path.startswith("record.spec.")}
    assert of_record == TOLD
    assert (
        paths_in(for_peer(view, Peer(pid=1, uid=54322, user=view.record.spec.user))) == everything
    )
