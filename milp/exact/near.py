"""The sizes that lose little against the price of a node, and the best among them.

Takes a price with what the trainers pick at it and how much may be lost; gives the sizes
that lose least, if they lose no more than that. Called by ``milp.exact.columns``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from milp.exact.column_data import Columns
from milp.exact.core import CoreChoice, solve_core
from milp.exact.detours import Detours, Ways, find_detours
from milp.exact.few import first_gap
from milp.exact.worths import Worths
from milp.tables import BoolArray, FloatArray, IntArray

SMALL_CELLS = 1 << 12  # see ``is_small``
MANY_SIZES, MANY_TRAINERS = 150, 24  # from so many on it pays to look what can matter
SHARES = (0.0, 0.1, 0.2, 0.4, 0.7, 1.0)  # of the way from the bound to the gap, tried in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A price, what the trainers pick at it, and what is lost against it."""

    columns: Columns | Worths
    price: float
    reduced: FloatArray  # [j, m]: value less price times size, of candidates or of all sizes
    best: FloatArray  # [j]: the largest of it
    spots: IntArray  # [j]: the candidate, in all of them, that is worth that
    picks: FloatArray  # [j]: a size that is worth that
    left: int  # nodes the picks leave; below 0: nodes they lack
    tolerance: float  # differences up to this are float noise
    drift: float = 0.0  # on top of the price: tells apart what only rescales differ in


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Best sizes for the nodes there are, and for one more; None: beyond the gap."""

    sizes: FloatArray | None = None
    loss: float = 0.0  # against the price
    has_larger: bool = False
    loss_of_larger: float = 0.0


def is_small(columns: Columns) -> bool:
    """Whether the losses of all sizes are quicker computed than most of them ruled out."""
    return len(columns.present) * (1 + float(columns.n_max.max())) <= SMALL_CELLS


class Near:
    """Sizes that lose at most ``gap``; whatever else there is loses more."""

    def __init__(self, setting: Setting, gap: float) -> None:
        columns = setting.columns
        # A rescale more loses a tolerance more: what is equally good is told apart by it.
        self.noise = setting.tolerance * (len(columns.present) + 2)
        self.gap = gap + self.noise
        self.least = 0.0  # nothing loses less, as far as is known
        self.rows: IntArray = np.arange(len(columns.present))
        if isinstance(columns, Worths):
            self.losses: FloatArray = setting.best[:, None] - setting.reduced
            return
        self.rows = _undecided(setting, columns, self.gap).nonzero()[0]
        self.losses = columns.losses(self.rows, setting.price, setting.best)

    def adapt(self, setting: Setting) -> None:
        """Set the gap to what an answer near the picks loses, where all losses are at hand."""
        steps = np.arange(self.losses.shape[1]) - setting.picks.astype(np.int64)[:, None]
        gap = first_gap(self.losses, steps, setting.price, setting.left, setting.tolerance)
        if gap < np.inf:
            self.gap = gap + self.noise

    def decide(self, setting: Setting) -> Found:
        """The sizes that lose least by the program over what is within the gap."""
        rows, sizes = (self.losses <= self.gap).nonzero()
        options = _options(setting, self, rows, sizes)
        return self.found(setting, *options.decide(setting, (self.gap, self.gap)))

    def search(self, setting: Setting) -> Found:
        """The sizes that lose least."""
        survives = self.losses <= self.gap
        several = (survives.sum(axis=1) > 1).nonzero()[0]
        if len(several) < len(self.rows):
            self.rows, self.losses = self.rows[several], self.losses[several]
            survives = survives[several]
        rows, sizes = survives.nonzero()
        options = _options(setting, self, rows, sizes)
        chosen: tuple[IntArray | None, IntArray | None] | None = None
        is_many = len(rows) >= MANY_SIZES or len(self.rows) >= MANY_TRAINERS
        if is_many and options.losses.min() >= -setting.tolerance / 4:
            detours = find_detours(
                options.steps,
                options.losses,
                setting.left,
                setting.price + setting.drift,
                setting.tolerance / 64,
            )
            if detours is not None:
                chosen = self.among_many(setting, options, detours)
        if chosen is None:
            chosen = options.decide(setting, (self.gap, self.gap))
        return self.found(setting, *chosen)

    def among_many(
        self, setting: Setting, options: _Options, detours: Detours
    ) -> tuple[IntArray | None, IntArray | None]:
        """Steps by trainer, where a bound on detours from the picks tells what matters."""
        left, fuzz = setting.left, setting.tolerance / 4
        most, most_of_larger = detours.at(left), detours.at(left + 1)
        self.least = max(most, most_of_larger)
        if self.least > self.gap:
            return None, None
        ways = Ways(
            options.rows,
            options.steps,
            options.losses,
            detours=detours,
            price=setting.price + setting.drift,
            tolerance=fuzz,
        )
        found: tuple[IntArray | None, IntArray | None] = (
            ways.take(left, most),
            ways.take(left + 1, most_of_larger),
        )
        noise = setting.tolerance * (options.n_rows + 2)
        for share in SHARES:
            gaps = []
            keep = np.zeros(len(options.rows), dtype=np.bool_)
            for known, extra, bound in ((found[0], 0, most), (found[1], 1, most_of_larger)):
                # The bound may count parts of rescales, of which there are none.
                gap = bound + share * (self.gap - bound) + noise if known is None else -np.inf
                keep |= detours.can_serve(options.steps, options.losses, left + extra, gap)
                gaps.append(gap)
            if not keep.any():
                break
            here, larger = options.only(keep).decide(setting, (gaps[0], gaps[1]))
            found = (
                here if found[0] is None else found[0],
                larger if found[1] is None else found[1],
            )
        return found

    def found(self, setting: Setting, steps: IntArray | None, larger: IntArray | None) -> Found:
        """The answer in sizes of all trainers, with what it loses to the last bit."""
        sizes, loss, loss_of_larger = None, 0.0, 0.0
        picks = setting.picks[self.rows].astype(np.int64)
        every, price = np.arange(len(picks)), setting.price
        if steps is not None:
            sizes = setting.picks.copy()
            sizes[self.rows] += steps
            loss = float(self.losses[every, picks + steps].sum())
            loss += price * (setting.left - int(steps.sum()))
        if larger is not None:
            loss_of_larger = float(self.losses[every, picks + larger].sum())
            loss_of_larger += price * (setting.left + 1 - int(larger.sum()))
        return Found(
            sizes=sizes,
            loss=loss,
            has_larger=larger is not None,
            loss_of_larger=loss_of_larger,
        )


@dataclass(frozen=True, slots=True)
class _Options:
    """Sizes to choose from as steps away from the picks, by trainer and ascending."""

    rows: IntArray  # [i]: whose
    steps: IntArray  # [i]
    losses: FloatArray  # [i]: with a rescale more or less than the pick, and the drift
    n_rows: int

    def only(self, keep: BoolArray) -> _Options:
        return _Options(
            self.rows[keep],
            self.steps[keep],
            self.losses[keep],
            self.n_rows,
        )

    def decide(
        self, setting: Setting, gaps: tuple[float, float]
    ) -> tuple[IntArray | None, IntArray | None]:
        """Steps by trainer that lose least, with the nodes there are and with one more."""
        counts = np.bincount(self.rows, minlength=self.n_rows)
        several = (counts > 1).nonzero()[0]
        open_ones = self
        if len(several) < self.n_rows:
            open_ones = self.only(counts[self.rows] > 1)
        bounds = [0, *counts[several].cumsum().tolist()]
        # Steps from 0 on, as sizes; what that adds is added to the nodes.
        lowest = open_ones.steps[bounds[:-1]]
        sizes, losses = open_ones.steps - lowest.repeat(counts[several]), open_ones.losses
        choices = [
            CoreChoice(sizes[start:end], losses[start:end]) for start, end in pairwise(bounds)
        ]
        nodes = setting.left - int(lowest.sum())
        price = setting.price + setting.drift
        found = solve_core(choices, nodes, price, gaps, setting.tolerance / 4)

        def spread(chosen: list[int] | None) -> IntArray | None:
            if chosen is None:
                return None
            steps = np.zeros(self.n_rows, dtype=np.int64)
            steps[several] = lowest + np.array(chosen, dtype=np.int64)
            return steps

        return spread(found.sizes), spread(found.sizes_of_larger)


def _options(setting: Setting, near: Near, rows: IntArray, sizes: IntArray) -> _Options:
    picks = setting.picks[near.rows].astype(np.int64)
    present = setting.columns.present[near.rows]
    losses = near.losses[rows, sizes]
    rescales = (sizes != present[rows]).astype(np.float64)
    rescales -= (picks != present)[rows]
    steps = sizes - picks[rows]
    losses += setting.tolerance * rescales + setting.drift * steps
    return _Options(rows, steps, losses, len(near.rows))


def _undecided(setting: Setting, columns: Columns, gap: float) -> BoolArray:
    """Trainers that can have two sizes within the gap.

    A size within it is a candidate, or lies on a line with another candidate that is, or
    its line begins or ends at the best candidate and rises about as steeply as the price.
    """
    price = setting.price
    several: BoolArray = (setting.reduced >= (setting.best - gap)[:, None]).sum(axis=1) > 1
    line = columns.lines.take(setting.spots)
    gain = columns.slopes.take(line) * columns.scale
    several |= np.abs(gain * columns.seconds - price) <= gap
    line -= columns.knots.take(line) == columns.candidates.take(setting.spots)
    gain = columns.slopes.take(np.maximum(line, 0)) * columns.scale
    several |= np.abs(gain * columns.seconds - price) <= gap
    return several
