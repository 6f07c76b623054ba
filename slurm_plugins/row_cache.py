"""Caches the parsed rows of the last poll: most rows do not change.

Keeps results by their input, for one poll; used by ``slurm_plugins.snapshot`` and ``parse``. With
10,000 nodes and as many jobs a poll takes a fifth of the time (``scripts/bench_scale.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Rows(Generic[T]):
    """Rows of text and their parsed values."""

    known: dict[str, T] = field(default_factory=dict)

    def read(
        self,
        rows: Iterable[str],
        one: Callable[[str], T],
        is_small: Callable[[T], bool] = lambda _: True,
    ) -> list[T]:
        """Parse each row with ``one``, unless the last poll had the same row.

        Values that are not small are not kept, so that users' input cannot fill the memory.
        """
        before, self.known = self.known, {}
        found: list[T] = []
        for row in rows:
            made = before.get(row)
            if made is None:
                made = one(row)
            if is_small(made):
                self.known[row] = made
            found.append(made)
        return found


@dataclass(slots=True)
class Made(Generic[T]):
    """Values derived from records, by name, with what else they depend on."""

    _now: dict[str, tuple[T, object, T]] = field(default_factory=dict)
    _before: dict[str, tuple[T, object, T]] = field(default_factory=dict)

    def begin(self) -> None:
        """Drop what the last poll did not use."""
        self._before, self._now = self._now, {}

    def of(self, name: str, record: T, beside: object, make: Callable[[], T]) -> T:
        """Return the value for this same record object and an equal ``beside``."""
        known = self._before.get(name)
        if known is None or known[0] is not record or known[1] != beside:
            known = (record, beside, make())
        self._now[name] = known
        return known[2]
