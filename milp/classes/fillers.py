"""Inner sizes put off: which trainer fills a class up is searched, by how much is not.

Takes menus, returns menus in which each run of inner sizes is one option of its smallest
size, and beside them what growing along the run is worth. Called for a search that
would otherwise look at every vector of used nodes: sizes that are not inner are few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from milp.classes.vector_bound import KIND_BITS, MARKED, Filler, Menu, kinds_of
from milp.tables import FloatArray, IntArray


@dataclass(slots=True, kw_only=True)
class _Runs:
    """The kinds of runs met so far, by class."""

    fillers: list[list[Filler]]
    kinds: list[dict[bytes, int]]

    def kind(self, k: int, filler: Filler, tolerance: float) -> int:
        """Number of this kind of run in class k, from 1."""
        key = np.round(np.concatenate([filler.gains, filler.losses]) / tolerance).tobytes()
        number = self.kinds[k].setdefault(key, len(self.fillers[k]) + 1)
        if number > len(self.fillers[k]):
            self.fillers[k].append(filler)
        return number


def put_off(
    menus: Sequence[Menu], n_classes: int, tolerance: float
) -> tuple[list[Menu], list[list[Filler]]] | None:
    """Menus without runs of inner sizes, and the runs; None: too many kinds of runs."""
    if n_classes > MARKED:
        return None
    runs = _Runs(fillers=[[] for _ in range(n_classes)], kinds=[{} for _ in range(n_classes)])
    shorter = [_shorten(menu, runs, tolerance) for menu in menus]
    if max(len(fillers) for fillers in runs.fillers) >= 1 << KIND_BITS:
        return None
    return shorter, runs.fillers


def _shorten(menu: Menu, runs: _Runs, tolerance: float) -> Menu:
    kept = np.ones(len(menu.sizes), dtype=np.bool_)
    inner, losses = menu.inner.copy(), menu.losses.copy()
    for k in range(len(runs.fillers)):
        at = np.flatnonzero(kinds_of(menu.inner, k) != 0)
        at = at[np.argsort(menu.sizes[at])]
        breaks = np.flatnonzero(np.diff(menu.sizes[at]) > 1) + 1
        for run in np.split(at, breaks):
            if not len(run):
                continue
            least = float(losses[run].min())
            filler = Filler(
                gains=menu.values[run] - menu.values[run[0]], losses=menu.losses[run] - least
            )
            kept[run[1:]] = False
            losses[run[0]] = least
            inner[run[0]] = runs.kind(k, filler, tolerance) << (KIND_BITS * k)
    return _only(replace(menu, inner=inner, losses=losses), np.flatnonzero(kept))


def _only(menu: Menu, which: IntArray) -> Menu:
    return replace(
        menu,
        classes=menu.classes[which],
        sizes=menu.sizes[which],
        uses=menu.uses[which],
        values=menu.values[which],
        losses=menu.losses[which],
        rescales=menu.rescales[which],
        inner=menu.inner[which],
    )


def fill_up(values: FloatArray, filler: Filler | None) -> IntArray:
    """Of c nodes, how many the run best takes, the class's own trainers the rest: by c."""
    grown = np.zeros(len(values), dtype=np.int64)
    if filler is None:
        return grown
    best = np.full(len(values), -np.inf)
    for step, gain in enumerate(filler.gains[: len(values)].tolist()):
        reached = values[: len(values) - step] + gain
        is_better = reached >= best[step:]
        best[step:][is_better] = reached[is_better]
        grown[step:][is_better] = step
    return grown
