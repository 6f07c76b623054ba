"""A linear model of many columns, solved with few of them at a time.

Takes a model that HiGHS has, of which the first columns are choices and the others stay in it in
any case. Called by ``milp.classes`` where kinds of units compete: most sizes of most trainers are
in no answer, and HiGHS would read them again in each run.

The linear relaxation with some of the choices is that with all of them when none of the others
would gain at its prices; those that would are added until there is none (column generation).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import highspy
import numpy as np
from numpy.typing import NDArray

from milp.highs import new_highs
from milp.tables import BoolArray, FloatArray, IntArray

QUIET = {"output_flag": False, "threads": 1, "random_seed": 0}


class Relaxed(NamedTuple):
    """The linear relaxation."""

    bound: float  # no solution is worth more
    costs: FloatArray  # by choice: a solution with it is worth so much less at least
    prices: FloatArray  # by row


class NarrowModel:
    """A model as columns, of which some at a time are handed to HiGHS."""

    def __init__(self, highs: Any, n_choices: int) -> None:
        """Read the model that HiGHS has; the objective is maximised."""
        highs.ensureColwise()
        lp = highs.getLp()
        self._n_choices = n_choices
        self._cost: FloatArray = np.array(lp.col_cost_)
        self._upper: FloatArray = np.array(lp.col_upper_)
        self._row_lower, self._row_upper = np.array(lp.row_lower_), np.array(lp.row_upper_)
        self._start: IntArray = np.array(lp.a_matrix_.start_, dtype=np.int64)
        self._index: IntArray = np.array(lp.a_matrix_.index_, dtype=np.int64)
        self._value: FloatArray = np.array(lp.a_matrix_.value_)
        self._length = np.diff(self._start)
        self._column_of = np.arange(len(self._cost)).repeat(self._length)

    def relax(self, is_first: BoolArray, noise: float) -> Relaxed | None:
        """Solve the linear relaxation; None: it has no solution with the first choices.

        Args:
            is_first: choices to begin with.
            noise: what a choice that is left out gains at most.
        """
        is_open = is_first.copy()
        n_choices = self._n_choices
        highs, _ = self.pass_on(is_open)
        while True:
            highs.run()
            if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                return None
            solution = highs.getSolution()
            prices: FloatArray = np.array(solution.row_dual)
            per_column = np.bincount(
                self._column_of, self._value * prices[self._index], len(self._cost)
            )
            costs = (per_column - self._cost)[:n_choices]
            gains = (costs < -noise) & ~is_open
            if not gains.any():
                bound = float(highs.getInfo().objective_function_value)
                return Relaxed(bound, costs, prices)
            is_open |= gains
            columns = np.flatnonzero(gains)
            start, index, value = self._entries(columns)
            lower, cost, upper = np.zeros(len(columns)), self._cost[columns], self._upper[columns]
            starts = start[:-1].astype(np.int32)
            highs.addCols(len(columns), cost, lower, upper, len(index), starts, index, value)

    def spread(self, values: Sequence[float], columns: IntArray) -> FloatArray:
        """Return values of some columns as those of all; the others are 0."""
        of_all = np.zeros(len(self._cost))
        of_all[columns] = values
        return of_all

    def pass_on(self, is_open: BoolArray, *, is_whole: bool = False) -> tuple[Any, IntArray]:
        """Return HiGHS with the open choices and all other columns, and which columns these are.

        Args:
            is_open: by choice.
            is_whole: whether columns are whole numbers.
        """
        always = np.arange(self._n_choices, len(self._cost))
        columns: IntArray = np.concatenate([np.flatnonzero(is_open), always])
        start, index, value = self._entries(columns)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(columns), len(self._row_lower)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_, lp.col_upper_ = self._cost[columns], self._upper[columns]
        lp.col_lower_ = np.zeros(len(columns))
        lp.row_lower_, lp.row_upper_ = self._row_lower, self._row_upper
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        # Lists, as highspy reads an array number by number here.
        lp.a_matrix_.start_ = start.tolist()
        lp.a_matrix_.index_ = index.tolist()
        lp.a_matrix_.value_ = value.tolist()
        if is_whole:
            lp.col_upper_ = np.minimum(
                self._upper[columns], np.where(columns < self._n_choices, 1.0, np.inf)
            )
            lp.integrality_ = [highspy.HighsVarType.kInteger] * len(columns)
        highs = new_highs()
        for name, setting in QUIET.items():
            highs.setOptionValue(name, setting)
        highs.passModel(lp)
        return highs, columns

    def _entries(self, columns: IntArray) -> tuple[IntArray, NDArray[np.int32], FloatArray]:
        """Return where the entries of each column start, their rows and their values."""
        length = self._length[columns]
        start = np.append(0, length.cumsum())
        at = np.arange(start[-1]) + (self._start[columns] - start[:-1]).repeat(length)
        return start, self._index[at].astype(np.int32), self._value[at]
