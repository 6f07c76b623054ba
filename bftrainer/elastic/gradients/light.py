"""What members must have alike besides their tensors: learning rates, schedules, counters.

Pure. ``leaves`` lists the values of the light state by their paths, ``digest`` makes one number of
them, cheap enough for every update, and ``differing`` names what differs between ranks. Used by
``comparison``.

What a value is decides, not its type: a number of numpy, or one that came through a checkpoint,
is that of Python. Tensors count up to ``MOST_ELEMENTS`` in host memory, because reading one from a
GPU would stop it; what is no value, such as a function, does not count.
"""

from __future__ import annotations

import hashlib
import math
import struct
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch

DIGEST_BITS: Final = 36
MOST_ELEMENTS: Final = 16  # of a tensor that counts
_DIGEST_BYTES: Final = 5
_MARK_BYTES: Final = 6
_QUIET_NAN: Final = 0x7FFC << 48  # the bits of a double; those below may be any
_PARAMETERS: Final = frozenset({"params"})
_FLOATS: Final = frozenset({float, bool})
_SEQUENCES: Final = frozenset({list, tuple, deque})
_EXACT: Final = 1 << 53  # all integers up to here are floats
_PLAIN: Final = (bool, int, float, str)  # subclasses of these count as their value
_UNREAD: Final = "?"  # stands for what does not count


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafDifference:
    """A value of the light state that is not the same on all ranks."""

    path: str  # such as "optimizer.param_groups[0].lr"
    values: Mapping[int, Any]  # rank -> value; ranks without it are absent

    def __str__(self) -> str:
        by_value: dict[str, list[int]] = {}
        for rank, value in sorted(self.values.items()):
            by_value.setdefault(repr(value), []).append(rank)
        phrases = [f"{value} on {in_words_of(ranks)}" for value, ranks in by_value.items()]
        return f"{self.path} is {', '.join(phrases)}"


def in_words_of(ranks: Sequence[int]) -> str:
    """Return ranks as words."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {', '.join(map(str, ranks))}"


def digest(values: Iterable[Any], groups: Sequence[Mapping[str, Any]] = ()) -> int:
    """Return a number of ``DIGEST_BITS`` bits that differs when any value does.

    1, 1.0 and True are one value.

    Args:
        values: that count.
        groups: of an optimizer, which count without their parameters.
    """
    numbers: list[float] = [len(groups)]
    texts: list[str] = []
    for group in groups:
        keys, mark = _order_of(tuple(group), _PARAMETERS)
        numbers.append(mark)
        _flatten_all(map(group.__getitem__, keys), numbers, texts)
    _flatten_all(values, numbers, texts)
    # Most values are numbers: as an array they take a third of the time of repr().
    text = array("d", numbers).tobytes() + "\0".join(texts).encode()
    data = hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(data, "big") >> (8 * _DIGEST_BYTES - DIGEST_BITS)


def _flatten_all(values: Iterable[Any], numbers: list[float], texts: list[str]) -> None:
    """Append the numbers of values, and for each text a number that keeps its place."""
    for value in values:
        kind = type(value)
        if kind in _FLOATS:
            # A NaN of the processor and one read from text differ in their bits.
            numbers.append(math.nan if math.isnan(value) else value)
        elif value is None:
            numbers.append(_NONE)
        elif kind is int and _is_exact_float(value):
            numbers.append(value)
        elif kind in _SEQUENCES:
            numbers.append(_length_mark(len(value)))
            _flatten_all(value, numbers, texts)
        elif kind is str or kind is int:
            numbers.append(_TEXT)
            texts.append(repr(value))
        elif isinstance(value, dict):
            keys, mark = _order_of(tuple(value))
            numbers.append(mark)
            _flatten_all(map(value.__getitem__, keys), numbers, texts)
        else:
            _flatten_all((_plain(value),), numbers, texts)


def _is_exact_float(number: int) -> bool:
    """Return whether some float is just this integer."""
    if -_EXACT <= number <= _EXACT:
        return True
    try:
        return float(number) == number
    except OverflowError:
        return False


def _mark_of(what: str) -> float:
    """Return a number that stands for something that is none: a NaN that no computation makes."""
    data = hashlib.blake2b(what.encode(), digest_size=_MARK_BYTES).digest()
    # Quiet: a signalling one would not keep its bits everywhere.
    bits = int.from_bytes(data, "big") | _QUIET_NAN
    (number,) = struct.unpack("<d", struct.pack("<Q", bits))
    return float(number)


_NONE: Final = _mark_of("None")
_TEXT: Final = _mark_of("a text")


@lru_cache(maxsize=256)
def _length_mark(length: int) -> float:
    return _mark_of(f"[{length}")


@lru_cache(maxsize=256)
def _order_of(
    keys: tuple[Any, ...], left_out: frozenset[Any] = frozenset()
) -> tuple[list[Any], float]:
    """Return keys in one order, as a restored table may have another, and a mark of them."""
    in_order = _sorted(key for key in keys if key not in left_out)
    return in_order, _mark_of(repr(list(map(_as_integer, in_order))))


def _sorted(keys: Iterable[Any]) -> list[Any]:
    try:
        return sorted(keys)
    except TypeError:  # of several types
        return sorted(keys, key=repr)


def _plain(value: Any) -> Any:
    """Return a value of Python for one of another type."""
    if isinstance(value, torch.Tensor):
        return value.tolist() if _is_read(value) else _UNREAD
    if type(value).__module__ == "numpy":
        return value.tolist() if value.size <= MOST_ELEMENTS else _UNREAD
    if isinstance(value, set | frozenset):
        return sorted(map(repr, map(_as_integer, value)))
    for base in _PLAIN:
        if isinstance(value, base):
            return base(value)
    return _UNREAD


def _is_read(tensor: torch.Tensor) -> bool:
    """Return whether a tensor counts: it is small, and no GPU has to be waited for."""
    return tensor.numel() <= MOST_ELEMENTS and tensor.device.type == "cpu"


def count(value: Any, most: int) -> int:
    """Return how many leaves a value has, ``most + 1`` at most.

    A tensor that does not count in a digest is ``most + 1`` leaves.
    """
    if isinstance(value, torch.Tensor):
        return max(1, value.numel()) if _is_read(value) else most + 1
    if type(value).__module__ == "numpy":
        return min(int(value.size), most + 1)
    if not isinstance(value, dict | list | tuple | set | frozenset | deque):
        return 1
    parts: Iterable[Any] = value
    if isinstance(value, dict):
        parts = value.values()
    total = 0
    for part in parts:
        total += count(part, most)
        if total > most:
            return most + 1
    return total


def leaves(value: Any, path: str) -> dict[str, Any]:
    """Return the values of a structure by their paths, as far as they count in a digest."""
    if isinstance(value, dict):
        parts = [(f"{path}.{_as_integer(key)}", value[key]) for key in _sorted(value)]
    elif isinstance(value, list | tuple | deque):
        parts = [(f"{path}[{place}]", part) for place, part in enumerate(value)]
    elif value is None or type(value) in _PLAIN:
        return {path: value}
    else:
        return leaves(_plain(value), path)
    table: dict[str, Any] = {}
    for name, part in parts:
        table |= leaves(part, name)
    return table


def _as_integer(key: Any) -> Any:
    """Return a key or an element of a set, as an integer if it is one: 1.0 and True are 1."""
    if isinstance(key, bool) or (isinstance(key, float) and key.is_integer()):
        return int(key)
    return key


def _text_of(leaf: Any) -> str:
    """Return a text that is the same for two leaves when they are one value in a digest."""
    if isinstance(leaf, int) and _is_exact_float(leaf):
        return repr(float(leaf))
    return repr(leaf)


def differing(tables: Mapping[int, Mapping[str, Any]]) -> list[LeafDifference]:
    """Return what differs between the leaves of ranks, learning rates first."""
    paths: dict[str, None] = {}
    for table in tables.values():
        paths |= dict.fromkeys(table)
    differences: list[LeafDifference] = []
    for path in paths:
        values = {rank: table[path] for rank, table in tables.items() if path in table}
        n_values = len(set(map(_text_of, values.values())))
        if n_values > 1 or len(values) < len(tables):
            differences.append(LeafDifference(path=path, values=values))
    return sorted(differences, key=lambda difference: not difference.path.endswith(".lr"))
