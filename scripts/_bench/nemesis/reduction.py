"""The shortest list of faults that still fails, by delta debugging. Pure.

Parts of a list are tried, and what is left when a part is taken out, with ever smaller parts
(Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE Transactions on
Software Engineering 28, 2002). Each try costs minutes, so no list is tried twice, and there is a
limit of tries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

T = TypeVar("T")
Numbers = tuple[int, ...]  # places of the whole list


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduced(Generic[T]):
    """What is left of a list."""

    items: tuple[T, ...]
    tries: int
    is_least: bool  # without any one item it does not fail; False: the tries ran out


def reduce(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool], most: int) -> Reduced[T]:
    """Return a part of a list that fails, as short as ``most`` tries find it.

    Args:
        items: a list that is known to fail.
        fails: whether a part of it, in the same order, fails.
        most: tries.
    """
    tried: dict[Numbers, bool] = {}
    numbers: Numbers = tuple(range(len(items)))
    n_parts = 2
    while len(numbers) > 1:
        shorter = None
        for part in _parts(numbers, n_parts):
            if part not in tried:
                if len(tried) >= most:
                    return Reduced(items=_of(items, numbers), tries=len(tried), is_least=False)
                tried[part] = fails(_of(items, part))
            if tried[part]:
                shorter = part
                break
        if shorter is not None:
            n_parts = 2 if len(shorter) <= len(numbers) // n_parts + 1 else max(n_parts - 1, 2)
            numbers = shorter
        elif n_parts < len(numbers):
            n_parts = min(2 * n_parts, len(numbers))
        else:
            break
    return Reduced(items=_of(items, numbers), tries=len(tried), is_least=True)


def _parts(numbers: Numbers, n_parts: int) -> Iterator[Numbers]:
    """Yield each part, then all but each part."""
    cuts = [len(numbers) * k // n_parts for k in range(n_parts + 1)]
    parts = [numbers[begin:end] for begin, end in pairwise(cuts)]
    yield from parts
    if n_parts > 2:  # of two parts the rest is the other one
        for part in parts:
            yield tuple(n for n in numbers if n not in part)


def _of(items: Sequence[T], numbers: Numbers) -> tuple[T, ...]:
    return tuple(items[number] for number in numbers)
