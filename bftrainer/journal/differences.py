"""Stores large payloads as differences from the previous one of their kind.

Works on the values, not on their JSON: parts that are identical or equal are not traversed, so
the effort is proportional to what has changed. Changes are computed when an entry is written and
applied when it is read. A change is None (none), ``{"v": whole}``, ``{"d": by key, "x":
removed keys}`` or ``{"l": parts}``; a part is a run ``[first, count]`` of old items, a changed
one, ``{"at": place, "c": change}``, or a new one, ``{"v": item}``.

Decisions hold all nodes, jobs and trainers, most of them unchanged. ``DifferenceWriter`` shortens
what the journal writes (``difference`` computes the change); ``Reader`` restores the canonical
JSON byte for byte. After ``LONGEST_CHAIN`` entries, at each start and after each checkpoint a
payload is written in full. Long texts are deflated.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import types
import typing
import zlib
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bftrainer.model.canonical import CanonicalError, encoder, parse, text_of, to_plain
from milp.plain import Later, added_fields, field_hints, parts_of

_Compare = Callable[[Any, Any], Any]
_SCALARS = (str, float, int, bool, type(None), Path)
PREFIX: Final = '{"a-difference-from":'
DEFLATED: Final = '{"a-text-deflated":'
DEFLATED_CHARS: Final = 1024  # shorter texts are written as they are
_ENDLESS = (OverflowError, RecursionError, MemoryError)  # numbers, depths and texts without end
LONGEST_CHAIN: Final = 128  # entries to be read to restore one, at most


def difference(base: object, new: object, hint: Any = Any) -> Any:
    """Return the change from the plain form of ``base`` to that of ``new``.

    Args:
        base: a value of type ``hint``; not modified.
        new: another; not modified.
        hint: their type; ``Any``: plain JSON, or the values' own types.

    Raises:
        CanonicalError: BFT-2220, a new part has no canonical form.
    """
    if base is new:
        return None
    return _compare(hint)(base, new)


@functools.cache
def _compare(hint: Any) -> _Compare:
    """Return how values of a type hint are compared (built once per hint)."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    compare: _Compare = functools.partial(_of_leaves, hint)
    if hint is Any or hint is object:
        compare = _of_anything
    elif dataclasses.is_dataclass(hint):
        compare = functools.partial(_of_fields, hint)
    elif (inner := _without_none(hint)) is not None:
        compare = functools.partial(_of_optional, hint, inner)
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        compare = functools.partial(_of_mappings, hint, *arguments)
    elif _is_endless(hint):
        compare = functools.partial(_of_sequences, hint, arguments[0])
    return compare


def _without_none(hint: Any) -> Any:
    """Return ``X`` of ``X | None``; None: the hint is another one."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return None
    inner = [a for a in typing.get_args(hint) if a is not type(None)]
    if len(inner) != 1:
        return None
    return inner[0]


def _is_endless(hint: Any) -> bool:
    """Return whether the type is a sequence of any length."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if not (isinstance(origin, type) and issubclass(origin, Sequence)):
        return False
    return not issubclass(origin, tuple) or arguments[1:] == (...,)


def _of_anything(base: Any, new: Any) -> Any:
    if type(base) is type(new):
        kind: Any = type(new)
        if dataclasses.is_dataclass(new):
            return _of_fields(kind, base, new)
        if isinstance(new, dict):
            return _of_mappings(Any, Any, Any, base, new)
        if isinstance(new, (list, tuple)):
            return _of_sequences(Any, Any, base, new)
    return _of_leaves(Any, base, new)


def _of_leaves(hint: Any, base: Any, new: Any) -> Any:
    is_scalar = isinstance(new, (*_SCALARS, enum.Enum))
    if is_scalar and type(base) is type(new) and base == new:
        return None
    encode = encoder(hint)
    plain = encode(new)
    if text_of(encode(base)) == text_of(plain):
        return None
    return {"v": plain}


def _of_optional(hint: Any, other: Any, base: Any, new: Any) -> Any:
    if base is None or new is None:
        return _of_leaves(hint, base, new)
    return _compare(other)(base, new)


def _of_fields(cls: Any, base: Any, new: Any) -> Any:
    if {type(base), type(new)} != {cls}:
        return _of_leaves(cls, base, new)
    if _is_exact(cls) and base == new:
        return None
    later: Later | None = getattr(cls, "LATER", None)
    names, set_apart = _names_of(cls)
    if later is None:
        return _of_names(cls, names, base, new)
    change = _of_names(cls, names, base, new) or {"d": {}, "x": []}
    was_written, is_written = _are_written(cls, later, base), _are_written(cls, later, new)
    if was_written and not is_written:
        change["x"].append(later.within)
    elif is_written and not was_written:
        change["d"][later.within] = {"v": encoder(cls)(new)[later.within]}
    elif (inner := _of_names(cls, set_apart, base, new)) is not None:
        change["d"][later.within] = inner
    if not change["d"] and not change["x"]:
        return None
    return change


@functools.cache
def _names_of(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of a class, and those that it names in ``LATER``, in its order."""
    later: Later | None = getattr(cls, "LATER", None)
    apart: AbstractSet[str] = frozenset() if later is None else later.fields
    names = tuple(field_hints(cls))
    return (
        tuple([name for name in names if name not in apart]),
        tuple([name for name in names if name in apart]),
    )


def _are_written(cls: Any, later: Later, record: Any) -> bool:
    """Return whether the journal has fields of a record that its class names in ``LATER``."""
    defaults = added_fields(cls)
    return any(getattr(record, name) != defaults[name] for name in later.fields)


def _of_names(cls: Any, names: Sequence[str], base: Any, new: Any) -> Any:
    """Return the difference in these fields; None: there is none."""
    changes: dict[str, Any] = {}
    reset_names: list[str] = []  # of fields that are at their default again, so not written
    later_fields, hints, parts = added_fields(cls), field_hints(cls), parts_of(cls)
    for name in names:
        before, after, hint = getattr(base, name), getattr(new, name), hints[name]
        if name in parts:  # its fields are on this level
            part = parts[name]
            inner = difference(part.record_of(before), part.record_of(after), part.cls)
            if inner is not None:
                changes.update(inner["d"])
                reset_names += inner["x"]
        elif name in later_fields and (before == later_fields[name]) != (
            after == later_fields[name]
        ):
            if after == later_fields[name]:
                reset_names.append(name)
            else:
                changes[name] = {"v": encoder(hint)(after)}
        elif (change := difference(before, after, hint)) is not None:
            changes[name] = change
    if not changes and not reset_names:
        return None
    return {"d": changes, "x": reset_names}


def _of_mappings(hint: Any, key_hint: Any, item_hint: Any, base: Any, new: Any) -> Any:
    if not (isinstance(base, Mapping) and isinstance(new, Mapping)):
        return _of_leaves(hint, base, new)
    encode, compare = encoder(item_hint), _compare(item_hint)
    before, after = _by_name(hint, key_hint, base), _by_name(hint, key_hint, new)
    differing = {}
    for name, item in after.items():
        if name not in before:
            differing[name] = {"v": encode(item)}
        elif before[name] is not item and (change := compare(before[name], item)) is not None:
            differing[name] = change
    removed_keys = [name for name in before if name not in after]
    if not differing and not removed_keys:
        return None
    return {"d": differing, "x": removed_keys}


def _by_name(hint: Any, key_hint: Any, given: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The same with the keys as they are written."""
    if all(type(key) is str for key in given):
        return given
    encode = encoder(key_hint)
    by_text = {str(encode(key)): item for key, item in given.items()}
    if by_text.keys() != encoder(hint)(given).keys():
        raise TypeError("keys that are written otherwise")  # a bug: canonical has another rule
    return by_text


def _of_sequences(hint: Any, item_hint: Any, base: Any, new: Any) -> Any:
    """Runs of items of ``base``, items that differ from theirs, and items that are new."""
    if not (isinstance(base, (list, tuple)) and isinstance(new, (list, tuple))):
        return _of_leaves(hint, base, new)
    encode, is_exact = encoder(item_hint), _is_exact(item_hint)
    places: dict[Any, int] | None = None
    parts: list[Any] = []
    at = 0  # where the run goes on
    for index, item in enumerate(new):
        place: int | None = at
        change = None
        if not (at < len(base) and (base[at] is item or (is_exact and base[at] == item))):
            key = _key(item, index)
            if at >= len(base) or _key(base[at], at) != key:
                if places is None:
                    places = {
                        _key(item_before, i): i
                        for i, item_before in reversed(list(enumerate(base)))
                    }
                place = places.get(key)
            if place is not None:
                change = difference(base[place], item, item_hint)
        if place is None:
            parts.append({"v": encode(item)})
            continue
        if change is not None:
            is_whole = "v" in change
            parts.append({"v": change["v"]} if is_whole else {"at": place, "c": change})
        elif parts and isinstance(parts[-1], list) and sum(parts[-1]) == place:
            parts[-1][1] += 1
        else:
            parts.append([place, 1])
        at = place + 1
    if len(base) == len(new) and parts in ([], [[0, len(base)]]):
        return None
    return {"l": parts}


def _key(item: Any, index: int) -> Any:
    """By what an item is found again: its first field names it (a node, a job, a trainer)."""
    kind: Any = type(item)
    if dataclasses.is_dataclass(item) and (fields := field_hints(kind)):
        item = getattr(item, next(iter(fields)))
    return item if isinstance(item, str) else index


@functools.cache
def _is_exact(hint: Any) -> bool:
    """Return whether equal values are certainly written alike: 1, 1.0 and True are not."""
    if dataclasses.is_dataclass(hint):
        kind: Any = hint
        hints = field_hints(kind).values()
        return all(f.compare for f in dataclasses.fields(hint)) and all(map(_is_exact, hints))
    if (inner := _without_none(hint)) is not None:
        return _is_exact(inner)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(origin, type) and issubclass(origin, (Mapping, Sequence, AbstractSet)):
        return all(_is_exact(a) for a in arguments if a is not ...)
    return hint in _SCALARS or isinstance(hint, enum.EnumType)


@dataclass(slots=True, kw_only=True)
class _Base:
    value: object
    length: int = 0  # of the chain
    seq: int = 0  # of its entry; 0: not written yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortened:
    """A payload, complete except for the number of the entry it differs from."""

    text: str
    own: _Base
    base: _Base | None = None

    def written_as(self, seq: int) -> str:
        """Return the payload of entry ``seq``; ``base`` must have been written before."""
        self.own.seq = seq
        if self.base is None:
            return self.text
        return f"{PREFIX}{self.base.seq},{self.text[1:]}"


@dataclass(slots=True)
class DifferenceWriter:
    """Keeps the last value of each kind and writes differences from it."""

    _last: dict[str, _Base] = field(default_factory=dict)

    def shortened(self, kind: str, value: object) -> Shortened:
        """Return what to write; the base of the next difference of this kind.

        Args:
            kind: of the entry.
            value: must not change afterwards.

        Raises:
            CanonicalError: BFT-2220, it has no canonical form.
        """
        base = self._last.get(kind)
        if base is None or base.length >= LONGEST_CHAIN:
            next_base = _Base(value=value)
            shortened = Shortened(text=_deflated(text_of(to_plain(value))), own=next_base)
        else:
            next_base = _Base(value=value, length=base.length + 1)
            text = text_of({"changes": difference(base.value, value)})
            shortened = Shortened(text=_deflated(text), own=next_base, base=base)
        self._last[kind] = next_base
        return shortened

    def forget(self) -> None:
        """Write the next payloads in full, as previous ones may be missing or removed."""
        self._last.clear()


@dataclass(slots=True)
class Reader:
    """Restores payloads; ``payload_of`` returns that of another entry as written."""

    payload_of: Callable[[int], str | None]
    _seq: int = 0  # the last one restored: usually the base of the next
    _plain: Any = None

    def whole(self, seq: int, payload: str) -> Any:
        """Return the full payload as JSON's dicts, lists and numbers.

        What it has in common with the one before are the same objects: they must not be changed.

        Raises:
            CanonicalError: BFT-2220, its base is missing or does not match.
        """
        if not payload.startswith((PREFIX, DEFLATED)):
            return parse(payload)
        try:
            result = self._followed(seq, payload)
        except (LookupError, TypeError, ValueError, AttributeError, *_ENDLESS) as problem:
            raise CanonicalError(f"entry {seq} does not follow from earlier ones") from problem
        self._seq, self._plain = seq, result
        return result

    def _followed(self, seq: int, text: str) -> Any:
        changes: list[Any] = []
        while seq != self._seq and text.startswith(PREFIX):
            if len(changes) > LONGEST_CHAIN:
                raise ValueError("too long a chain")
            plain = parse(text)
            changes.append(_inflated(plain)["changes"])
            seq = plain["a-difference-from"]
            text = self.payload_of(seq) or ""
        result = self._plain
        if seq != self._seq:
            result = _inflated(parse(text))
        for change in reversed(changes):
            result = applied(result, change)
        return result


def applied(base: Any, change: Any) -> Any:
    """Return ``new`` of ``difference(base, new)``; parts of ``base`` are shared with it."""
    if change is None:
        return base
    if "v" in change:
        return change["v"]
    if "d" in change:
        removed_keys = set(change["x"])
        result = {key: value for key, value in base.items() if key not in removed_keys}
        for key, inner in change["d"].items():
            result[key] = applied(result.get(key), inner)
        return result
    items: list[Any] = []
    for part in change["l"]:
        if isinstance(part, list):
            first, count = part
            items += base[first : first + count]
        elif "at" in part:
            items.append(applied(base[part["at"]], part["c"]))
        else:
            items.append(part["v"])
    return items


def _deflated(text: str) -> str:
    if len(text) < DEFLATED_CHARS:
        return text
    packed = base64.b64encode(zlib.compress(text.encode("ascii"))).decode("ascii")
    return f'{DEFLATED}"{packed}"}}'


def _inflated(plain: Any) -> Any:
    """Undo ``_deflated``; a difference's base number is outside the deflated text."""
    packed = plain.get("a-text-deflated") if isinstance(plain, dict) else None
    if packed is None:
        return plain
    try:
        return parse(zlib.decompress(base64.b64decode(packed, validate=True)))
    except zlib.error as problem:
        raise ValueError("invalid deflated text") from problem
