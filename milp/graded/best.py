"""The best map of grades found so far, kept by the graded search.

Takes one row per trainer at a time, solves the transport problem once for each, and
keeps what is worth most; ties: fewest rescales, then earlier trainers have more.
"""

from __future__ import annotations

import numpy as np

from milp.graded.repair import fit_classes
from milp.graded.rows import Rows
from milp.graded.transport import Transport, transport
from milp.tables import FloatArray, IntArray


class Best:
    """What the search has to beat."""

    def __init__(
        self,
        rows: Rows,
        *,
        counts: IntArray,
        class_of: IntArray,
        current: IntArray,
        tolerance: float,
    ) -> None:
        """``rows`` must fit: one per trainer."""
        self.counts, self.class_of = counts, class_of
        self.current, self.tolerance = current, tolerance
        found = transport(rows, counts)
        if found is None:
            raise ValueError("the first rows do not fit the nodes")
        self.rows, self.map = rows, found
        self._attempts = 0
        self._tried: dict[bytes, Transport | None] = {}

    @property
    def value(self) -> float:
        """Objective of the best map."""
        return self.map.value

    def beats(self, bound: float) -> bool:
        """Whether nothing below this bound is worth a look."""
        return bound <= self.map.value + self.tolerance

    def try_rows(self, rows: Rows) -> Transport | None:
        """Solve for these rows and keep them if they are better; None: they do not fit."""
        key = np.concatenate([rows.size, rows.menu]).tobytes()
        if key not in self._tried:
            found = self._tried[key] = transport(rows, self.counts)
            if found is not None and self._is_better(rows, found.value):
                self.rows, self.map = rows, found
        return self._tried[key]

    def try_near(self, rows: Rows, worth: FloatArray) -> None:
        """Try what fits the classes and is worth most, as each trainer sees it."""
        picks = fit_classes(rows, worth, self.class_of, self.counts, self._attempts, self.tolerance)
        self._attempts += 1
        if picks is not None:
            self.try_rows(rows.keep(picks))

    def _is_better(self, rows: Rows, value: float) -> bool:
        if abs(value - self.map.value) > self.tolerance:
            return value > self.map.value
        keys = [
            (-int((sizes != self.current).sum()), sizes.tolist())
            for sizes in (self.rows.size, rows.size)
        ]
        return keys[1] > keys[0]
