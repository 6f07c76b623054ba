"""Several node classes: a MILP over sizes, solved by HiGHS where nothing quicker does.

Takes Options with several classes and their PoolView, returns class and size per trainer;
called by the solver when the pool is not one class. Nodes are not in the model: "no migration"
makes those of a class alike, as for one class (``milp.exact``).

* x_jkn = 1: trainer j has n nodes of class k. One of these per trainer, or none (size 0), and
  at most N_k nodes of class k. A trainer that mixes classes has x_jn and whole numbers s_jk of
  nodes by class, sum_k s_jk = n: from C_j on at least those that it holds, below at most those.
  Every legal answer is a solution with the same value, and the other way round.
* The linear relaxation bounds the value by z. Its reduced costs say what each x costs at least:
  a solution with x = 1 is worth no more than z - cost. So, when a solution of value v is known,
  every better one lies among the x that cost at most z - v. First few x are tried, which gives a
  good v, then all within z - v; the answer to that is the optimum.

* Caps (``milp.solve``) are rows over x, and so is x >= 1 in all of a trainer that must run. Sizes
  beyond a cap of the trainer are left out, because z would be far too high with a part of one, and
  so are sizes worth less than a smaller one.

* With caps the relaxation says little about irregular curves: z is some per cent too high. Where
  there are many x, bound and costs come from ``milp.decomposition`` then, which starts from the
  relaxation's prices of classes and caps, and rules out nearly all x. Ever more of the others are
  tried, the cheapest first, until none is left that could be part of a better answer, or the
  answer is ``NEAR_ENOUGH``, or there are too many. All this is counted, not timed. Where the
  decomposition would take too long, the search ends within ``CLOSE_ENOUGH`` or, of even more x,
  takes the best ``MOST_CAPPED``. What a better answer could be worth more is the gap.

* Where GPUs are lent, the classes are kinds of units, and kinds that are made of the same GPUs have
  rows of ``milp.supply`` beside their own: N_k is then what there is of the kind in any case, and
  columns say how many units more it gets. Ties between the sizes of such kinds are settled within
  as many units as the kind has, and not at all where a trainer could have to migrate. Where no
  trainer accepts two of these kinds, each width divides the next larger one and there are no caps,
  ``milp.exact.kinds`` says how many units each kind gets, and HiGHS is not asked.

Ties: as they come from HiGHS (one thread, fixed seed: the same problem, the same answer), but
sizes within a class are those of ``milp.exact``: fewest rescales, then earlier trainers get more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from numpy.typing import NDArray

from milp.decomposition import decompose
from milp.exact.dual import solve_pool
from milp.exact.group_caps import Infeasible, Members, solve_nested
from milp.exact.kinds import KindValues, solve_kinds
from milp.highs import new_highs
from milp.narrow import NarrowModel
from milp.options import Options
from milp.pool import PoolView
from milp.problem import ProblemError
from milp.supply import HeldParts, Keeping, Supply, chain_of, supply_of
from milp.tables import BoolArray, FloatArray, IntArray

FIRST = 240  # x tried first
LARGEST_COST = 1e4  # values are scaled to this, far above HiGHS's absolute tolerances
NOISE = 1e-5  # on that scale
NO_GAP = 1e-9  # relative: what HiGHS leaves when it ends with the optimum
DIGITS = 6  # after the point, on that scale: what HiGHS says below hangs on its build
MOST_NODES = 5_000  # of the search tree: nearly all problems need one
# Under caps: x of which the best is found, x tried at all, and what is close enough to the best.
MOST_EXACT, MOST_CAPPED, CLOSE_ENOUGH = 500, 1_000, 0.004
# With costs from the decomposition: x tried beyond one per trainer, at first and at most, and by
# how much they grow. After some more x an answer so near what is proven
# is taken, if many could still be part of a better one.
FIRST_EXTRA, MOST_EXTRA, GROWTH = 40, 200, 1.6
NEAR_ENOUGH, SOME_EXTRA, MANY_NEAR = 0.002, 80, 200
CAPPED_SETTINGS = {"mip_max_nodes": 40, "mip_allow_restart": False}  # a restart takes longer here
INFEASIBLE = (
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,
)
SETTINGS = {
    "output_flag": False,
    "threads": 1,
    "random_seed": 0,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": NOISE / 10,
    "mip_feasibility_tolerance": 1e-9,
    "mip_max_nodes": MOST_NODES,
}

# Where kinds compete: with so few columns these take longer than what they save.
NARROW_SETTINGS = {
    "mip_allow_restart": False,
    "mip_heuristic_run_feasibility_jump": False,
    "mip_heuristic_run_rens": False,
    "mip_heuristic_run_rins": False,
    "mip_heuristic_run_root_reduced_cost": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassesAnswer:
    """Best sizes per trainer and class."""

    split: IntArray  # [j, k]: nodes of class k
    price: float  # of a node of the dearest class
    gap: float  # the optimum is worth at most this much more; 0.0: it is this


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choices:
    """The columns x: what trainers may take, but for size 0."""

    trainer: IntArray
    of_class: IntArray  # of trainers that mix the first that they accept
    size: IntArray
    gain: FloatArray  # over size 0


def solve_classes(
    options: Options,
    pool: PoolView,
    caps: Sequence[tuple[Members, int]] = (),
    must_run: Sequence[bool] = (),
) -> ClassesAnswer:
    """Maximise over classes and sizes.

    Args:
        options: what each trainer may take.
        pool: of the same problem.
        caps: members, and how many nodes they have at most.
        must_run: trainers that may not have size 0; empty: none.

    Raises:
        ProblemError: HiGHS has no answer, which would be a defect of it.
        Infeasible: those that must run do not fit.
    """
    accepts = np.array(pool.accepts, dtype=np.bool_).reshape(-1, len(options.counts))
    is_bound = np.array(must_run or [False] * len(accepts), dtype=np.bool_)
    is_mixed = np.array(pool.mixes, dtype=np.bool_) & (accepts.sum(axis=1) > 1)
    if not (caps or is_bound.any() or is_mixed.any()):
        answer = _in_chain(options, pool, accepts)
        if answer is not None:
            return answer
    choices = _choices(options, accepts, is_mixed)
    if caps or is_bound.any():
        choices = _useful(choices, caps, is_mixed)
    split = np.zeros(accepts.shape, dtype=np.int64)
    supply = supply_of(pool)
    price = gap = 0.0
    if not np.isin(np.flatnonzero(is_bound), choices.trainer).all():
        raise Infeasible
    if is_bound.any() or (len(choices.gain) and choices.gain.max() > 0):
        model = _Model(options, pool, choices, is_mixed, supply)
        model.cap(caps, is_bound)
        price, gap = model.solve(split)
    may_settle = accepts & ~is_mixed[:, None]
    full = set[int]()  # kinds whose number of units stays
    if supply is not None:
        full = supply.coupled
        may_settle[:, list(supply.contended)] = False
    groups = [frozenset(members) for members, _ in caps]
    under = [tuple([j in group for group in groups]) for j in range(len(split))]
    for group in dict.fromkeys(under):
        is_own = np.array([one == group for one in under], dtype=np.bool_)
        is_full = [any(group) or k in full for k in range(len(options.counts))]
        _settle(options, split, may_settle & is_own[:, None], is_bound, is_full)
    return ClassesAnswer(split=split, price=price, gap=gap)


def _in_chain(options: Options, pool: PoolView, accepts: BoolArray) -> ClassesAnswer | None:
    """Return the answer of ``milp.exact.kinds``; None: it does not serve."""
    if (accepts.sum(axis=1) > 1).any():
        return None
    chain = chain_of(pool)
    if chain is None:
        return None
    members_of = [np.flatnonzero(accepts[:, k]) for k in chain.kinds]
    values: list[FloatArray] = []
    for k, members in zip(chain.kinds, members_of, strict=True):
        own = options.allowed[k][members]
        own[:, 0] = options.allowed[0][members, 0]
        values.append(own)
    best = solve_kinds(
        [
            KindValues(
                values=own,
                current=options.current[members],
                edges=options.edges_of(members.tolist()),
            )
            for own, members in zip(values, members_of, strict=True)
        ],
        chain,
        options.tolerance,
    )
    if best is None:
        return None
    split = np.zeros(accepts.shape, dtype=np.int64)
    for k, members, own, n_units in zip(chain.kinds, members_of, values, best.n_units, strict=True):
        of_kind = solve_pool(own, options.current[members], n_units, options.tolerance)
        split[members, k] = of_kind.sizes
    return ClassesAnswer(split=split, price=max(best.prices), gap=0.0)


def relaxed_sizes(options: Options, pool: PoolView) -> list[float]:
    """Return sizes by trainer, not whole, of the linear relaxation without caps."""
    accepts = np.array(pool.accepts, dtype=np.bool_).reshape(-1, len(options.counts))
    is_mixed = np.array(pool.mixes, dtype=np.bool_) & (accepts.sum(axis=1) > 1)
    choices = _choices(options, accepts, is_mixed)
    if not len(choices.gain):
        return [0.0] * len(accepts)
    return _Model(options, pool, choices, is_mixed, supply_of(pool)).relaxed_sizes()


def _choices(options: Options, accepts: BoolArray, is_mixed: BoolArray) -> _Choices:
    allowed = options.allowed
    of_class, trainer, size = np.nonzero(np.isfinite(allowed))
    counts = np.array(options.counts, dtype=np.int64)
    limit = np.where(is_mixed, (accepts * counts).sum(axis=1), counts[:, None])
    is_usual = ~is_mixed[trainer] | (of_class == accepts.argmax(axis=1)[trainer])
    kept = is_usual & (size > 0) & (size <= limit[of_class, trainer])
    of_class, trainer, size = of_class[kept], trainer[kept], size[kept]
    at_nothing = allowed[:, :, 0].max(axis=0)
    gain = allowed[of_class, trainer, size] - at_nothing[trainer]
    return _Choices(trainer=trainer, of_class=of_class, size=size, gain=gain)


def _useful(
    choices: _Choices, caps: Sequence[tuple[Members, int]], is_mixed: BoolArray
) -> _Choices:
    """Return the choices within the caps that are worth no less than all smaller ones.

    A smaller size keeps every cap that a larger one keeps. Those that mix classes hold some nodes
    of each while they shrink, so theirs are only held against the caps.
    """
    most = np.full(len(is_mixed), np.iinfo(np.int64).max)
    for members, limit in caps:
        own = list(members)
        most[own] = np.minimum(most[own], limit)
    # By trainer and class, then by size.
    order = np.lexsort((choices.size, choices.of_class, choices.trainer))
    is_useful = choices.size <= most[choices.trainer]
    best, row_before = 0.0, (-1, -1)
    trainers, classes = choices.trainer[order].tolist(), choices.of_class[order].tolist()
    for at, *row, gain in zip(
        order.tolist(), trainers, classes, choices.gain[order].tolist(), strict=True
    ):
        if tuple(row) != row_before:
            best, row_before = -np.inf, tuple(row)
        if gain < best and not is_mixed[row[0]]:
            is_useful[at] = False
        best = max(best, gain)
    return _Choices(
        trainer=choices.trainer[is_useful],
        of_class=choices.of_class[is_useful],
        size=choices.size[is_useful],
        gain=choices.gain[is_useful],
    )


def _settle(
    options: Options,
    split: IntArray,
    may_have: BoolArray,
    is_bound: BoolArray,
    is_full: Sequence[bool],
) -> None:
    """Take sizes within each class from the solver for one; ``split`` changes, its worth not.

    Trainers without nodes take part, so that of equal trainers the first one starts. Those under
    the same caps, or of units that other kinds compete for (``is_full``, by class), have no more
    nodes together than before.
    """
    for k, count in enumerate(options.counts):
        is_member = may_have[:, k] & (split.sum(axis=1) == split[:, k])
        members = np.flatnonzero(is_member)
        if len(members):
            allowed = options.allowed[k][members]
            allowed[:, 0] = options.allowed[:, members, 0].max(axis=0)
            left = count - int(split[~is_member, k].sum())
            left = int(split[members, k].sum()) if is_full[k] else left
            best = solve_nested(
                allowed, options.current[members], is_bound[members], (), left, options.tolerance
            )
            split[members, k] = best.sizes


class _Model:
    """The model in HiGHS."""

    def __init__(
        self,
        options: Options,
        pool: PoolView,
        choices: _Choices,
        is_mixed: BoolArray,
        supply: Supply | None,
    ) -> None:
        self._choices, self._is_mixed = choices, is_mixed[choices.trainer]
        self._scale = LARGEST_COST / (float(np.abs(choices.gain).max(initial=0.0)) or 1.0)
        self._counts, self._first_class = options.counts, len(pool.trainers)
        self._supply = supply
        self._narrow: NarrowModel | None = None
        self._taken: FloatArray = np.zeros(0)  # by column, of the best solution of ``_narrow``
        self._eased: dict[str, Any] = {}  # settings that differ once there are many x
        self._accepts, self._held = pool.accepts, pool.held
        self._current = options.current.tolist()
        self._is_capped = False
        self._caps: Sequence[tuple[Members, int]] = ()
        self._is_bound = np.zeros(self._first_class, dtype=np.bool_)
        self._parts: list[tuple[int, int, int]] = []  # trainer, class, column of s
        highs = new_highs()
        self._highs = highs
        for name, value in SETTINGS.items():
            highs.setOptionValue(name, value)
        highs.passModel(self._lp())
        for j in np.flatnonzero(is_mixed).tolist():
            self._mix(j, pool, int(options.current[j]))
        if supply is not None:
            self._add_supply(supply)

    def _lp(self) -> highspy.HighsLp:
        """Columns x; a row per trainer and one per class."""
        x, lp = self._choices, highspy.HighsLp()
        is_entry = np.column_stack([np.ones_like(self._is_mixed), ~self._is_mixed])
        rows = np.column_stack([x.trainer, self._first_class + x.of_class])
        factors = np.column_stack([np.ones_like(x.size), x.size])
        lp.num_col_ = len(x.gain)
        lp.num_row_ = self._first_class + len(self._counts)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = x.gain * self._scale
        lp.col_lower_ = np.zeros(len(x.gain))
        lp.col_upper_ = np.full(len(x.gain), highspy.kHighsInf)
        lp.row_lower_ = np.full(lp.num_row_, -highspy.kHighsInf)
        counts = self._counts if self._supply is None else self._supply.base
        lp.row_upper_ = np.array([1] * self._first_class + list(counts), dtype=np.float64)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        # Lists, as highspy reads an array number by number here.
        lp.a_matrix_.start_ = np.append(0, is_entry.sum(axis=1).cumsum()).tolist()
        lp.a_matrix_.index_ = rows[is_entry].tolist()
        lp.a_matrix_.value_ = factors[is_entry].astype(np.float64).tolist()
        return lp

    def _mix(self, j: int, pool: PoolView, current: int) -> None:
        """Columns s of a trainer that mixes classes, and their rows."""
        highs, x = self._highs, self._choices
        own = np.flatnonzero(x.trainer == j)
        keeps = x.size[own] >= current
        columns: list[int] = []
        for k, accepted in enumerate(pool.accepts[j]):
            if not accepted:
                continue
            column, count, held = highs.getNumCol(), self._counts[k], pool.held[j][k]
            row = np.array([self._first_class + k], dtype=np.int32)
            highs.addCol(0.0, 0.0, float(count), 1, row, np.ones(1))
            columns.append(column)
            self._parts.append((j, k, column))
            at = np.append(own, column)
            self._add_row(at, np.append(np.where(keeps, -held, 0), 1), highspy.kHighsInf)
            self._add_row(at, np.append(np.where(keeps, count, held), -1), highspy.kHighsInf)
        self._add_row(np.append(own, columns), np.append(x.size[own], [-1] * len(columns)), 0.0)

    def _add_supply(self, supply: Supply) -> None:
        """Add the columns and rows of kinds that compete."""
        highs, first = self._highs, self._highs.getNumCol()
        rows_of: list[list[int]] = [[] for _ in supply.upper]
        for k, terms in enumerate(supply.units):
            for column, _ in terms:
                rows_of[column].append(self._first_class + k)
        for upper, kinds in zip(supply.upper, rows_of, strict=True):
            at = np.array(kinds, dtype=np.int32)
            highs.addCol(0.0, 0.0, float(upper), len(kinds), at, -np.ones(len(kinds)))
        for terms, most in supply.rows:
            at = np.array([first + column for column, _ in terms], dtype=np.int32)
            factors = np.array([factor for _, factor in terms], dtype=np.float64)
            highs.addRow(-highspy.kHighsInf, float(most), len(at), at, factors)
        for keeping in supply.keepings:
            self._keep_simply(keeping, first)
        for parts in supply.held:
            self._keep_parts(parts, first)

    def _keep_simply(self, keeping: Keeping, first: int) -> None:
        """Let no more contended parts be kept than serve a kind."""
        x = self._choices
        most = np.zeros(self._first_class, dtype=np.int64)
        for j, count in keeping.simple:
            most[j] = count
        own = np.flatnonzero((most[x.trainer] > 0) & (x.of_class == keeping.kind))
        columns = [first + column for column in keeping.columns]
        at = np.concatenate([own, columns, [first + keeping.serving]]).astype(np.int64)
        kept = np.minimum(x.size[own], most[x.trainer[own]])
        factors = np.concatenate([-kept, -np.ones(len(columns)), [1.0]])
        self._add_row(at, factors, highspy.kHighsInf)

    def _keep_parts(self, held: HeldParts, first: int) -> None:
        """Add how many of its contended parts a trainer keeps at least, whatever its size."""
        x, j = self._choices, held.trainer
        own = np.flatnonzero((x.trainer == j) & ((x.of_class == held.kind) | self._is_mixed))
        keeps = x.size[own] >= self._current[j]
        none = np.zeros(len(own), dtype=np.int64)
        columns = [first + column for column in held.columns.values()]
        for column, count in zip(columns, held.counts.values(), strict=True):
            terms = np.where(keeps, -count, none)
            self._add_row(np.append(own, column), np.append(terms, 1), highspy.kHighsInf)
        of_kind = [column for i, k, column in self._parts if (i, k) == (j, held.kind)]
        if of_kind:  # it mixes classes: a column has its units of this kind
            terms = np.where(keeps, self._counts[held.kind], none)
        else:
            terms = np.where(keeps, none, -x.size[own])
        at = np.concatenate([own, columns, of_kind]).astype(np.int64)
        factors = np.concatenate([terms, np.ones(len(columns)), -np.ones(len(of_kind))])
        self._add_row(at, factors, highspy.kHighsInf, lower=-float(held.n_others))

    def cap(self, caps: Sequence[tuple[Members, int]], is_bound: BoolArray) -> None:
        """Add rows for the caps and for those that must run."""
        highs, x = self._highs, self._choices
        self._is_capped = bool(caps) or bool(is_bound.any())
        self._caps, self._is_bound = caps, is_bound
        for members, most in caps:
            own = np.flatnonzero(np.isin(x.trainer, members)).astype(np.int32)
            sizes = x.size[own].astype(np.float64)
            highs.addRow(-highspy.kHighsInf, float(most), len(own), own, sizes)
        for j in np.flatnonzero(is_bound).tolist():
            highs.changeRowBounds(j, 1.0, 1.0)

    def _add_row(
        self, columns: IntArray, factors: NDArray[Any], upper: float, *, lower: float = 0.0
    ) -> None:
        used = factors != 0
        at, values = columns[used].astype(np.int32), factors[used].astype(np.float64)
        self._highs.addRow(lower, upper, len(at), at, values)

    def relaxed_sizes(self) -> list[float]:
        """Return each trainer's size in the linear relaxation."""
        self._run(infeasible=None)
        x, taken = self._choices, self._highs.getSolution().col_value
        sizes = [0.0] * self._first_class
        for j, size, share in zip(x.trainer.tolist(), x.size.tolist(), taken, strict=False):
            sizes[j] += size * share
        return sizes

    def solve(self, split: IntArray) -> tuple[float, float]:
        """Write the best nodes by trainer and class into ``split``; returns price and gap."""
        if self._supply is not None:
            return self._solve_narrowly(split)
        highs, n_x, n_all = self._highs, len(self._choices.gain), self._highs.getNumCol()
        bound, _ = self._run(infeasible=None)
        relaxed = highs.getSolution()
        costs = -np.array(relaxed.col_dual[:n_x])
        prices = np.abs(relaxed.row_dual)
        every = np.arange(n_all, dtype=np.int32)
        highs.changeColsIntegrality(n_all, every, np.ones(n_all, dtype=np.uint8))
        decomposed, decomposed_bound = None, math.inf
        if self._caps and n_x > FIRST and self._supply is None:
            decomposed = self._decomposed(prices)
        for name, setting in (SETTINGS if decomposed is None else CAPPED_SETTINGS).items():
            highs.setOptionValue(name, setting)
        value, proven = -np.inf, np.inf
        if decomposed is not None:
            decomposed_bound, decomposed_costs = decomposed
            if not self._is_tied(decomposed_costs):
                value, proven = self._search_narrowly(decomposed_bound, decomposed_costs)
                taken = np.array(highs.getSolution().col_value)
        if proven - value > CLOSE_ENOUGH * abs(bound):
            of_relaxed, upto = self._search(bound, costs)
            proven = min(proven, upto, decomposed_bound)
            if of_relaxed >= value:
                value, taken = of_relaxed, np.array(highs.getSolution().col_value)
        self._write(taken, split)
        return self._price_and_gap(prices, proven - value)

    def _solve_narrowly(self, split: IntArray) -> tuple[float, float]:
        """Do the same where kinds compete, with few choices in HiGHS at a time."""
        x = self._choices
        self._narrow = NarrowModel(self._highs, len(x.gain))
        relaxed = self._narrow.relax(self._corners(), NOISE)
        if relaxed is None:  # sizes that are no corners are needed, or nothing fits
            relaxed = self._narrow.relax(np.ones(len(x.gain), dtype=np.bool_), NOISE)
        if relaxed is None:
            raise Infeasible
        value, proven = self._search(relaxed.bound, relaxed.costs)
        if value == -np.inf:
            raise Infeasible
        self._write(self._taken, split)
        return self._price_and_gap(np.abs(relaxed.prices), proven - value)

    def _corners(self) -> BoolArray:
        """Return the choices behind which a trainer gains less per unit, and its size now.

        All of one that mixes classes.
        """
        x = self._choices
        order = np.lexsort((x.size, x.of_class, x.trainer))
        row = x.trainer[order] * len(self._counts) + x.of_class[order]
        size, gain = x.size[order], x.gain[order]
        is_first = np.append(True, row[1:] != row[:-1])
        is_last = np.append(is_first[1:], True)
        size_before = np.where(is_first, 0, np.append(0, size[:-1]))
        gain_before = np.where(is_first, 0.0, np.append(0.0, gain[:-1]))
        slope = (gain - gain_before) / (size - size_before)
        slope_after = np.append(slope[1:], 0.0)
        # Rounding must not make corners of all sizes on a line.
        bends = slope_after < slope - NOISE * NOISE * np.abs(slope)
        is_corner: BoolArray = np.zeros(len(order), dtype=np.bool_)
        is_corner[order] = is_last | bends
        is_corner |= x.size == np.array(self._current, dtype=np.int64)[x.trainer]
        return is_corner | self._is_mixed

    def _write(self, taken: FloatArray, split: IntArray) -> None:
        """Write the nodes by trainer and class that values of columns stand for."""
        x, n_x = self._choices, len(self._choices.gain)
        chosen = np.flatnonzero((taken[:n_x] > 0.5) & ~self._is_mixed)
        split[x.trainer[chosen], x.of_class[chosen]] = x.size[chosen]
        for j, k, column in self._parts:
            split[j, k] = round(taken[column])

    def _price_and_gap(self, prices: FloatArray, missing: float) -> tuple[float, float]:
        gap = max(0.0, round(missing, DIGITS))
        of_classes = prices[self._first_class : self._first_class + len(self._counts)]
        return round(float(of_classes.max()), DIGITS) / self._scale, gap / self._scale

    def _search(self, bound: float, costs: FloatArray) -> tuple[float, float]:
        """Try the x that cost little; returns the best value and what none is worth more than."""
        by_cost = np.sort(costs)
        within = float(by_cost[:FIRST][-1])
        while True:
            is_open = costs <= within + NOISE
            value, upto = self._best_of(is_open)
            if bound - value <= within or is_open.all():
                return value, min(bound, upto)
            n_near = int((costs <= bound - value + NOISE).sum())
            within = min(bound - value, float(costs.max()))
            if self._is_capped and n_near > MOST_EXACT:
                self._eased = {"mip_rel_gap": CLOSE_ENOUGH}
                self._highs.setOptionValue("mip_rel_gap", CLOSE_ENOUGH)
                if n_near > MOST_CAPPED and is_open.sum() < MOST_CAPPED:
                    within = float(by_cost[MOST_CAPPED - 1])
                elif n_near > MOST_CAPPED and value > -np.inf:
                    return value, bound

    def _is_tied(self, costs: FloatArray) -> bool:
        """Return whether the costs tell too few x apart, as those of equal trainers do."""
        return int((costs <= NOISE).sum()) > self._first_class + SOME_EXTRA

    def _search_narrowly(self, bound: float, costs: FloatArray) -> tuple[float, float]:
        """Do the same with costs that rule out nearly all x, in more steps."""
        order = self._in_turns(costs)
        # What the x behind a place in the order cost at least.
        behind = np.append(np.minimum.accumulate(costs[order][::-1])[::-1], np.inf)
        n_all = len(order)
        n_trainers, n_open = self._first_class, self._first_class + FIRST_EXTRA
        while True:
            n_open = min(n_open, n_all)
            is_open = np.zeros(n_all, dtype=np.bool_)
            is_open[order[:n_open]] = True
            value, upto = self._best_of(is_open)
            # What needs one of the others is worth no more than this.
            proven = min(bound, max(upto, bound - float(behind[n_open])))
            # Those behind this place are in no better answer.
            n_needed = int(np.searchsorted(behind, bound - value + NOISE, side="right"))
            n_near = int((costs <= bound - value + NOISE).sum())
            is_near = n_open > n_trainers + SOME_EXTRA and n_near > n_trainers + MANY_NEAR
            is_near &= proven - value <= NEAR_ENOUGH * abs(bound)
            is_many = n_open >= n_trainers + MOST_EXTRA and value > -np.inf
            if min(n_needed, n_all) <= n_open or is_near or is_many:
                return value, proven
            n_grown = int(GROWTH * n_open)
            if value == -np.inf:  # those that must run do not fit with these x
                n_open = n_grown
            else:
                most = n_trainers + MOST_EXTRA
                n_open = n_needed if n_needed <= n_grown else min(n_grown, most)

    def _in_turns(self, costs: FloatArray) -> IntArray:
        """Return the x by cost: first each trainer's cheapest, and equal costs trainer by turns.

        Where trainers are equal, so are the costs of their sizes; in the order of trainers the
        first would have all their sizes before the last had one.
        """
        by_trainer = np.lexsort((costs, self._choices.trainer))
        of_trainer = self._choices.trainer[by_trainer]
        first = np.searchsorted(of_trainer, of_trainer)
        rank = np.empty(len(costs), dtype=np.int64)
        rank[by_trainer] = np.arange(len(costs)) - first
        rounded = np.where(np.isfinite(costs), np.round(costs / NOISE), np.inf)
        return np.lexsort((rank, rounded, rank > 0))

    def _best_of(self, is_open: BoolArray) -> tuple[float, float]:
        """Return the best value of these x that is found, and what none of them is worth more than.

        Both are -inf if there is no answer with these x alone.
        """
        n_x = len(is_open)
        if self._narrow is not None:
            self._highs, columns = self._narrow.pass_on(is_open, is_whole=True)
            for name, setting in (SETTINGS | NARROW_SETTINGS | self._eased).items():
                self._highs.setOptionValue(name, setting)
            value, is_best = self._run(infeasible=-np.inf)
            if value > -np.inf:
                self._taken = self._narrow.spread(self._highs.getSolution().col_value, columns)
            is_proven = is_best or value == -np.inf
            return value, value if is_proven else self._highs.getInfo().mip_dual_bound
        every = np.arange(n_x, dtype=np.int32)
        self._highs.changeColsBounds(n_x, every, np.zeros(n_x), is_open.astype(np.float64))
        value, is_best = self._run(infeasible=None if is_open.all() else -np.inf)
        is_proven = is_best or value == -np.inf
        return value, value if is_proven else self._highs.getInfo().mip_dual_bound

    def _decomposed(self, prices: FloatArray) -> tuple[float, FloatArray] | None:
        """Return a bound and what each x costs at least; None: that would take too long."""
        x, behind = self._choices, self._first_class + len(self._counts)
        of_classes = prices[self._first_class : behind]
        net = x.gain * self._scale - of_classes[x.of_class] * x.size
        for i in np.flatnonzero(self._is_mixed).tolist():
            rent = self._least_rent(int(x.trainer[i]), int(x.size[i]), of_classes.tolist())
            net[i] = x.gain[i] * self._scale - rent
        best = np.full((self._first_class, int(x.size.max()) + 1), -np.inf)  # [j, n]
        best[~self._is_bound, 0] = 0.0
        np.maximum.at(best, (x.trainer, x.size), net)
        size_costs = decompose(best, self._caps, prices[-len(self._caps) :].tolist())
        if size_costs is None:
            return None
        bound = math.fsum([size_costs.bound, *(of_classes * self._counts).tolist()])
        return bound, size_costs.costs[x.trainer, x.size] + best[x.trainer, x.size] - net

    def _least_rent(self, j: int, size: int, of_classes: Sequence[float]) -> float:
        """Return what nodes of a trainer that mixes classes cost at least at these prices."""
        held, accepts, current = self._held[j], self._accepts[j], self._current[j]
        rent, left = 0.0, size
        if size >= current:  # what it holds and more
            rent = math.fsum([price * n for price, n in zip(of_classes, held, strict=True)])
            left = size - sum(held)
        for price, k in sorted(zip(of_classes, range(len(held)), strict=True)):
            if accepts[k]:
                room = self._counts[k] - held[k] if size >= current else held[k]
                n_taken = min(room, left)
                rent += price * n_taken
                left -= n_taken
        return rent

    def _run(self, *, infeasible: float | None) -> tuple[float, bool]:
        """Value of what HiGHS finds, and whether nothing is worth more.

        ``infeasible`` is the value if there is no solution; None: that is an error.
        """
        self._highs.run()
        info, status = self._highs.getInfo(), self._highs.getModelStatus()
        if status in INFEASIBLE:
            if infeasible is None:
                raise Infeasible
            return infeasible, False
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            raise ProblemError(
                "BFT-3022",
                f"HiGHS has no answer for several classes: {status.name}.",
                "Report this with the problem: size 0 for everybody is one.",
            )
        is_best = status == highspy.HighsModelStatus.kOptimal and not info.mip_gap > NO_GAP
        return info.objective_function_value, is_best
