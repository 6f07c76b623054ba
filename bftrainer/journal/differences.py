"""A long payload, as what differs from the one before it of its kind. Pure.

Decisions hold all nodes, jobs and trainers, and mostly the same ones each time. ``Writer``
shortens what the journal writes, ``whole`` undoes it for readers: the canonical JSON comes
back to the byte. Dicts are compared key by key, lists item by item; what is not equal in its
spelling is written in full. Every so often, and at each start, a payload is written whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bftrainer.canonical import CanonicalError, parse, text_of

PREFIX: Final = '{"a-difference-from":'
SHORT_BYTES: Final = 2048  # not worth it
LONGEST_CHAIN: Final = 64  # entries to be read for one, at most
# Of the lists of one tree, by id: how their items are spelt, so that it is found out once.
Spelt = dict[int, list[str]]


class _Last(NamedTuple):
    seq: int
    plain: Any
    length: int  # of the chain
    spelt: Spelt


@dataclass(slots=True)
class Writer:
    """Remembers the last long payload of each kind; ``keep`` when it is on disk."""

    _kept: dict[str, _Last] = field(default_factory=dict)
    _next: dict[str, _Last] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget what a transaction that failed would have written."""
        self._next = {}

    def keep(self) -> None:
        """The transaction succeeded."""
        self._kept |= self._next
        self._next = {}

    def shortened(self, kind: str, seq: int, text: str, plain: Any) -> str:
        """Return what to write as the payload of entry ``seq``."""
        if len(text) < SHORT_BYTES:
            return text
        last = self._next.get(kind) or self._kept.get(kind)
        if last is not None and last.length < LONGEST_CHAIN:
            spelt: Spelt = {}
            change = difference(last.plain, plain, last.spelt, spelt)
            short = text_of({"a-difference-from": last.seq, "changes": change})
            if 2 * len(short) < len(text):
                self._next[kind] = _Last(seq, plain, last.length + 1, spelt)
                return short
        self._next[kind] = _Last(seq, plain, 0, {})
        return text


@dataclass(slots=True)
class Reader:
    """Makes payloads whole; ``payload_of`` reads that of another entry, as it is written."""

    payload_of: Callable[[int], str | None]
    _seq: int = 0  # the last one made whole: mostly the one that the next differs from
    _plain: Any = None

    def whole(self, seq: int, payload: str) -> str:
        """Return the payload as it was handed to the journal.

        Raises:
            CanonicalError: BFT-2220, what it differs from is not there or is another thing.
        """
        if not payload.startswith(PREFIX):
            return payload
        try:
            result = self._followed(seq, payload)
            text = text_of(result)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as problem:
            raise CanonicalError(f"entry {seq} does not follow from earlier ones") from problem
        self._seq, self._plain = seq, result
        return text

    def _followed(self, seq: int, text: str) -> Any:
        changes: list[Any] = []
        while seq != self._seq and text.startswith(PREFIX):
            if len(changes) > LONGEST_CHAIN:
                raise ValueError("too long a chain")
            plain = parse(text)
            changes.append(plain["changes"])
            seq = plain["a-difference-from"]
            text = self.payload_of(seq) or ""
        result = self._plain if seq == self._seq else parse(text)
        for change in reversed(changes):
            result = applied(result, change)
        return result


def difference(
    base: Any, new: Any, spelt: Spelt | None = None, spelt_new: Spelt | None = None
) -> Any:
    """Return what makes ``new`` of ``base``; both are plain JSON values.

    ``spelt``: what an earlier call has put into ``spelt_new`` for ``base``.
    """
    spelt, spelt_new = spelt or {}, {} if spelt_new is None else spelt_new
    if isinstance(base, dict) and isinstance(new, dict):
        changed = {
            key: difference(base[key], value, spelt, spelt_new) if key in base else {"v": value}
            for key, value in new.items()
        }
        gone = [key for key in base if key not in new]
        return (
            {"d": {k: c for k, c in changed.items() if c is not None}, "x": gone}
            if (gone or any(c is not None for c in changed.values()))
            else None
        )
    if isinstance(base, list) and isinstance(new, list):
        before = spelt.get(id(base)) or list(map(text_of, base))
        after = spelt_new[id(new)] = list(map(text_of, new))
        return None if before == after else _of_lists(base, before, new, after)
    if type(base) is type(new) and base == new:  # 1, 1.0 and True are spelt otherwise
        return None
    return {"v": new}


def applied(base: Any, change: Any) -> Any:
    """Return ``new`` of ``difference(base, new)``; parts of ``base`` are shared with it."""
    if change is None:
        return base
    if "v" in change:
        return change["v"]
    if "d" in change:
        gone = set(change["x"])
        result = {key: value for key, value in base.items() if key not in gone}
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


def _of_lists(base: list[Any], before: list[str], new: list[Any], after: list[str]) -> Any:
    """Runs of items of ``base``, and items that are new."""
    places = {text: index for index, text in reversed(list(enumerate(before)))}
    parts: list[Any] = []
    at = -1  # where the run goes on
    for index, (text, item) in enumerate(zip(after, new, strict=True)):
        place = at if 0 <= at < len(before) and before[at] == text else places.get(text)
        if place is None:
            parts.append(_changed(base, index, item, text))
            at = -1
        elif place == at and parts and isinstance(parts[-1], list):
            parts[-1][1] += 1
            at += 1
        else:
            parts.append([place, 1])
            at = place + 1
    return {"l": parts}


def _changed(base: list[Any], index: int, item: Any, text: str) -> Any:
    """The item as it is, or what differs from the one in its place: which is shorter."""
    if isinstance(item, dict) and index < len(base) and isinstance(base[index], dict):
        part = {"at": index, "c": difference(base[index], item)}
        if len(text_of(part)) < len(text):
            return part
    return {"v": item}
