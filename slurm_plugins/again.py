"""What was made of the last look's rows: most are printed again as they were.

Keeps results by what they were made of, for one look; used by ``slurm_plugins.snapshot`` and
``parse``. At 10,000 nodes and as many jobs a look takes a fifth of the time with it
(``scripts/bench_scale.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Rows(Generic[T]):
    """Rows of text and what each says."""

    known: dict[str, T] = field(default_factory=dict)

    def read(
        self,
        rows: Iterable[str],
        one: Callable[[str], T],
        is_small: Callable[[T], bool] = lambda _: True,
    ) -> list[T]:
        """Read each row; only those that the last look did not have with ``one``.

        What is not small is read at every look: what users write must not fill the memory.
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
    """What was made of records, each by its name, of themselves and a few words beside."""

    _now: dict[str, tuple[T, object, T]] = field(default_factory=dict)
    _before: dict[str, tuple[T, object, T]] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget what the last look did not ask for."""
        self._before, self._now = self._now, {}

    def of(self, name: str, record: T, beside: object, make: Callable[[], T]) -> T:
        """Return what is made of this very record, and an equal ``beside``."""
        known = self._before.get(name)
        if known is None or known[0] is not record or known[1] != beside:
            known = (record, beside, make())
        self._now[name] = known
        return known[2]
