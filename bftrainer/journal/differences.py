"""Stores large payloads as differences from the previous one of their kind.

Decisions hold all nodes, jobs and trainers, most of them unchanged. ``DifferenceWriter`` shortens
what the journal writes (``changes`` computes the difference); ``Reader`` restores the canonical
JSON byte for byte. After ``LONGEST_CHAIN`` entries, at each start and after each checkpoint a
payload is written in full. Long texts are deflated.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from bftrainer.journal.changes import difference
from bftrainer.model.canonical import CanonicalError, parse, text_of, to_plain

PREFIX: Final = '{"a-difference-from":'
DEFLATED: Final = '{"a-text-deflated":'
DEFLATED_CHARS: Final = 1024  # shorter texts are written as they are
LONGEST_CHAIN: Final = 128  # entries to be read to restore one, at most


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
        return self.text if self.base is None else f"{PREFIX}{self.base.seq},{self.text[1:]}"


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
            own = _Base(value=value)
            made = Shortened(text=_deflated(text_of(to_plain(value))), own=own)
        else:
            own = _Base(value=value, length=base.length + 1)
            text = text_of({"changes": difference(base.value, value)})
            made = Shortened(text=_deflated(text), own=own, base=base)
        self._last[kind] = own
        return made

    def forget(self) -> None:
        """Write the next payloads in full, as previous ones may be missing or removed."""
        self._last.clear()


@dataclass(slots=True)
class Reader:
    """Restores payloads; ``payload_of`` returns that of another entry as written."""

    payload_of: Callable[[int], str | None]
    _seq: int = 0  # the last one restored: usually the base of the next
    _plain: Any = None

    def whole(self, seq: int, payload: str) -> str:
        """Return the full payload.

        Raises:
            CanonicalError: BFT-2220, its base is missing or does not match.
        """
        if not payload.startswith((PREFIX, DEFLATED)):
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
            changes.append(_inflated(plain)["changes"])
            seq = plain["a-difference-from"]
            text = self.payload_of(seq) or ""
        result = self._plain if seq == self._seq else _inflated(parse(text))
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
