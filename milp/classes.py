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
import operator
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
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
from milp.supply import HeldParts, Keeping, Supply, arrays_of, chain_of, supply_of
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
    full_kinds = set[int]()  # whose number of units stays
    if supply is not None:
        full_kinds = supply.coupled
        may_settle[:, list(supply.contended)] = False
    caps_over = _caps_over(len(split), caps)
    # Trainers under the same caps may change places with each other.
    for common_caps in dict.fromkeys(caps_over):
        is_under_them = np.array(
            [own_caps == common_caps for own_caps in caps_over], dtype=np.bool_
        )
        kinds_to_keep = set(range(len(options.counts))) if common_caps else full_kinds
        _settle(options, split, may_settle & is_under_them[:, None], is_bound, kinds_to_keep)
    return ClassesAnswer(split=split, price=price, gap=gap)


def _caps_over(n_trainers: int, caps: Sequence[tuple[Members, int]]) -> list[tuple[int, ...]]:
    """Return the indices of the caps over each trainer."""
    caps_over: list[tuple[int, ...]] = [()] * n_trainers
    for c, (members, _) in enumerate(caps):
        for j in members:
            caps_over[j] += (c,)
    return caps_over


def _in_chain(options: Options, pool: PoolView, accepts: BoolArray) -> ClassesAnswer | None:
    """Return the answer of ``milp.exact.kinds``; None: it does not serve."""
    if (accepts.sum(axis=1) > 1).any():
        return None
    chain = chain_of(pool)
    if chain is None:
        return None
    members_of_kinds: list[IntArray] = []
    kinds: list[KindValues] = []
    for k in chain.kinds:
        members = np.flatnonzero(accepts[:, k])
        values = options.allowed[k][members]
        values[:, 0] = options.allowed[0][members, 0]
        current, edges = options.current[members], options.edges_of(members.tolist())
        members_of_kinds.append(members)
        kinds.append(KindValues(values=values, current=current, edges=edges))
    best = solve_kinds(kinds, chain, options.tolerance)
    if best is None:
        return None
    split = np.zeros(accepts.shape, dtype=np.int64)
    for k, kind, members, n_units in zip(
        chain.kinds, kinds, members_of_kinds, best.n_units, strict=True
    ):
        answer = solve_pool(kind.values, kind.current, n_units, options.tolerance)
        split[members, k] = answer.sizes
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
    values = options.allowed
    of_class, trainer, size = np.nonzero(np.isfinite(values))
    counts = np.array(options.counts, dtype=np.int64)
    limit = np.where(is_mixed, (accepts * counts).sum(axis=1), counts[:, None])
    # Of a trainer that mixes classes the columns are those of the first class that it accepts.
    is_first_class = ~is_mixed[trainer] | (of_class == accepts.argmax(axis=1)[trainer])
    is_choice = is_first_class & (size > 0) & (size <= limit[of_class, trainer])
    of_class, trainer, size = of_class[is_choice], trainer[is_choice], size[is_choice]
    value_at_0 = values[:, :, 0].max(axis=0)
    gain = values[of_class, trainer, size] - value_at_0[trainer]
    return _Choices(trainer=trainer, of_class=of_class, size=size, gain=gain)


def _useful(
    choices: _Choices, caps: Sequence[tuple[Members, int]], is_mixed: BoolArray
) -> _Choices:
    """Return the choices within the caps that are worth no less than all smaller ones.

    A smaller size keeps every cap that a larger one keeps. Those that mix classes hold some nodes
    of each while they shrink, so theirs are only held against the caps.
    """
    largest_sizes = np.full(len(is_mixed), np.iinfo(np.int64).max)
    for members, limit in caps:
        j = list(members)
        largest_sizes[j] = np.minimum(largest_sizes[j], limit)
    # By trainer and class, then by size.
    order = np.lexsort((choices.size, choices.of_class, choices.trainer))
    is_useful = choices.size <= largest_sizes[choices.trainer]
    best_gain, row_before = 0.0, (-1, -1)
    trainers, classes = choices.trainer[order].tolist(), choices.of_class[order].tolist()
    for x, trainer, k, gain in zip(
        order.tolist(), trainers, classes, choices.gain[order].tolist(), strict=True
    ):
        if (trainer, k) != row_before:
            best_gain, row_before = -np.inf, (trainer, k)
        if gain < best_gain and not is_mixed[trainer]:
            is_useful[x] = False
        best_gain = max(best_gain, gain)
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
    full_kinds: AbstractSet[int],
) -> None:
    """Take sizes within each class from the solver for one; ``split`` changes, its worth not.

    Trainers without nodes take part, so that of equal trainers the first one starts. Those under
    the same caps, or of units that other kinds compete for (``full_kinds``), have no more
    nodes together than before.
    """
    for k, count in enumerate(options.counts):
        is_member = may_have[:, k] & (split.sum(axis=1) == split[:, k])
        members = np.flatnonzero(is_member)
        if not len(members):
            continue
        values = options.allowed[k][members]
        values[:, 0] = options.allowed[:, members, 0].max(axis=0)
        if k in full_kinds:
            capacity = int(split[members, k].sum())
        else:
            capacity = count - int(split[~is_member, k].sum())
        best = solve_nested(
            values, options.current[members], is_bound[members], (), capacity, options.tolerance
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
        self._parts: dict[tuple[int, int], int] = {}  # trainer and class -> column of s
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
        counts = list(self._counts)
        if self._supply is not None:
            counts = self._supply.base
        lp.row_upper_ = np.array([1] * self._first_class + counts, dtype=np.float64)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        # Lists, as highspy reads an array number by number here.
        lp.a_matrix_.start_ = np.append(0, is_entry.sum(axis=1).cumsum()).tolist()
        lp.a_matrix_.index_ = rows[is_entry].tolist()
        lp.a_matrix_.value_ = factors[is_entry].astype(np.float64).tolist()
        return lp

    def _mix(self, j: int, pool: PoolView, current: int) -> None:
        """Columns s of a trainer that mixes classes, and their rows."""
        highs, x = self._highs, self._choices
        x_columns = np.flatnonzero(x.trainer == j)
        sizes = x.size[x_columns]
        keeps = sizes >= current
        s_columns: list[int] = []
        for k, is_accepted in enumerate(pool.accepts[j]):
            if not is_accepted:
                continue
            column, count, n_held = highs.getNumCol(), self._counts[k], pool.held[j][k]
            row = np.array([self._first_class + k], dtype=np.int32)
            highs.addCol(0.0, 0.0, float(count), 1, row, np.ones(1))
            s_columns.append(column)
            self._parts[j, k] = column
            columns = np.append(x_columns, column)
            # s_jk is at least what it holds of the class, if it keeps all, ...
            self._add_row(columns, np.append(np.where(keeps, -n_held, 0), 1), highspy.kHighsInf)
            # ... and otherwise at most that.
            self._add_row(columns, np.append(np.where(keeps, count, n_held), -1), highspy.kHighsInf)
        # The s_jk add up to the size.
        minus_ones = [-1] * len(s_columns)
        self._add_row(np.append(x_columns, s_columns), np.append(sizes, minus_ones), 0.0)

    def _add_supply(self, supply: Supply) -> None:
        """Add the columns and rows of kinds that compete."""
        highs, first = self._highs, self._highs.getNumCol()
        rows_of: list[list[int]] = [[] for _ in supply.upper]
        for k, terms in enumerate(supply.units):
            for column, _ in terms:
                rows_of[column].append(self._first_class + k)
        for upper, rows in zip(supply.upper, rows_of, strict=True):
            row_array = np.array(rows, dtype=np.int32)
            highs.addCol(0.0, 0.0, float(upper), len(rows), row_array, -np.ones(len(rows)))
        for terms, upper in supply.rows:
            columns, factors = arrays_of(terms)
            columns += first
            highs.addRow(-highspy.kHighsInf, float(upper), len(columns), columns, factors)
        for keeping in supply.keepings:
            self._keep_simply(keeping, first)
        for parts in supply.held:
            self._keep_parts(parts, first)

    def _keep_simply(self, keeping: Keeping, first: int) -> None:
        """Let no more contended parts be kept than serve a kind."""
        x = self._choices
        n_parts = np.zeros(self._first_class, dtype=np.int64)  # by trainer
        for j, count in keeping.simple:
            n_parts[j] = count
        x_columns = np.flatnonzero((n_parts[x.trainer] > 0) & (x.of_class == keeping.kind))
        keep_columns = first + np.array(keeping.columns, dtype=np.int64)
        columns = np.concatenate([x_columns, keep_columns, [first + keeping.serving]])
        n_kept = np.minimum(x.size[x_columns], n_parts[x.trainer[x_columns]])
        factors = np.concatenate([-n_kept, -np.ones(len(keep_columns)), [1.0]])
        self._add_row(columns, factors, highspy.kHighsInf)

    def _keep_parts(self, held: HeldParts, first: int) -> None:
        """Add how many of its contended parts a trainer keeps at least, whatever its size."""
        x, j = self._choices, held.trainer
        x_columns = np.flatnonzero((x.trainer == j) & ((x.of_class == held.kind) | self._is_mixed))
        sizes = x.size[x_columns]
        keeps = sizes >= self._current[j]
        none = np.zeros(len(x_columns), dtype=np.int64)
        keep_columns: list[int] = []
        for part, keep_column in held.columns.items():
            keep_columns.append(first + keep_column)
            terms = np.where(keeps, -held.counts[part], none)
            columns = np.append(x_columns, first + keep_column)
            self._add_row(columns, np.append(terms, 1), highspy.kHighsInf)
        s_columns: list[int] = []
        terms = np.where(keeps, none, -sizes)
        if (j, held.kind) in self._parts:  # it mixes classes: a column has its units of this kind
            s_columns.append(self._parts[j, held.kind])
            terms = np.where(keeps, self._counts[held.kind], none)
        columns = np.concatenate([x_columns, keep_columns, s_columns]).astype(np.int64)
        factors = np.concatenate([terms, np.ones(len(keep_columns)), -np.ones(len(s_columns))])
        self._add_row(columns, factors, highspy.kHighsInf, lower=-float(held.n_others))

    def cap(self, caps: Sequence[tuple[Members, int]], is_bound: BoolArray) -> None:
        """Add rows for the caps and for those that must run."""
        highs, x = self._highs, self._choices
        self._is_capped = bool(caps) or bool(is_bound.any())
        self._caps, self._is_bound = caps, is_bound
        for members, limit in caps:
            columns = np.flatnonzero(np.isin(x.trainer, members)).astype(np.int32)
            sizes = x.size[columns].astype(np.float64)
            highs.addRow(-highspy.kHighsInf, float(limit), len(columns), columns, sizes)
        for j in np.flatnonzero(is_bound).tolist():
            highs.changeRowBounds(j, 1.0, 1.0)

    def _add_row(
        self, columns: IntArray, factors: NDArray[Any], upper: float, *, lower: float = 0.0
    ) -> None:
        is_entry = factors != 0
        entries, values = columns[is_entry].astype(np.int32), factors[is_entry].astype(np.float64)
        self._highs.addRow(lower, upper, len(entries), entries, values)

    def relaxed_sizes(self) -> list[float]:
        """Return each trainer's size in the linear relaxation."""
        self._run(infeasible=None)
        x, shares = self._choices, self._highs.getSolution().col_value
        sizes = [0.0] * self._first_class
        for j, size, share in zip(x.trainer.tolist(), x.size.tolist(), shares, strict=False):
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
        settings = SETTINGS if decomposed is None else CAPPED_SETTINGS
        for name, setting in settings.items():
            highs.setOptionValue(name, setting)
        value, proven = -np.inf, np.inf
        if decomposed is not None:
            decomposed_bound, decomposed_costs = decomposed
            if not self._is_tied(decomposed_costs):
                value, proven = self._search_narrowly(decomposed_bound, decomposed_costs)
                values = np.array(highs.getSolution().col_value)
        if proven - value > CLOSE_ENOUGH * abs(bound):
            value_of_relaxed, search_bound = self._search(bound, costs)
            proven = min(proven, search_bound, decomposed_bound)
            if value_of_relaxed >= value:
                value, values = value_of_relaxed, np.array(highs.getSolution().col_value)
        self._write(values, split)
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

    def _write(self, values: FloatArray, split: IntArray) -> None:
        """Write the nodes by trainer and class that values of columns stand for."""
        x, n_x = self._choices, len(self._choices.gain)
        x_chosen = np.flatnonzero((values[:n_x] > 0.5) & ~self._is_mixed)
        split[x.trainer[x_chosen], x.of_class[x_chosen]] = x.size[x_chosen]
        for (j, k), column in self._parts.items():
            split[j, k] = round(values[column])

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
            elif n_needed <= n_grown:
                n_open = n_needed
            else:
                n_open = min(n_grown, n_trainers + MOST_EXTRA)

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

    def _least_rent(self, j: int, size: int, prices: Sequence[float]) -> float:
        """Return what nodes of a trainer that mixes classes cost at least, at prices by class."""
        counts_held, accepts, keeps_all = self._held[j], self._accepts[j], size >= self._current[j]
        rent, n_missing = 0.0, size
        if keeps_all:  # what it holds and more
            rent = math.fsum(map(operator.mul, prices, counts_held))
            n_missing = size - sum(counts_held)
        for price, k in sorted(zip(prices, range(len(counts_held)), strict=True)):
            if not accepts[k]:
                continue
            n_available = counts_held[k]
            if keeps_all:
                n_available = self._counts[k] - counts_held[k]
            n_taken = min(n_available, n_missing)
            rent += price * n_taken
            n_missing -= n_taken
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
