"""HiGHS by highspy: a LinearModel in, its answer out; SOS2 sets become segments."""

from __future__ import annotations

import highspy
import numpy as np

from milp.highs import new_highs
from milp.reference.backends import TOLERANCE, ModelAnswer, ModelStatus, SolveOptions
from milp.reference.linear_model import LinearModel, with_segments, write_segments

SETTINGS = {
    "output_flag": False,
    "threads": 1,
    "random_seed": 0,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 0.0,
    "mip_feasibility_tolerance": TOLERANCE,
}
STATUSES = {
    highspy.HighsModelStatus.kOptimal: ModelStatus.OPTIMAL,
    highspy.HighsModelStatus.kInfeasible: ModelStatus.INFEASIBLE,
    highspy.HighsModelStatus.kUnbounded: ModelStatus.UNBOUNDED,
}
LIMIT_STATUSES = frozenset(
    {
        highspy.HighsModelStatus.kTimeLimit,
        highspy.HighsModelStatus.kIterationLimit,
        highspy.HighsModelStatus.kSolutionLimit,
        highspy.HighsModelStatus.kInterrupt,
    }
)


def solve_model(model: LinearModel, options: SolveOptions) -> ModelAnswer:
    """Solve with HiGHS."""
    if not model.costs:  # HiGHS calls such a model empty, not optimal
        return ModelAnswer(status=ModelStatus.OPTIMAL)
    segmented = write_segments(model)
    highs = new_highs()
    for name, value in SETTINGS.items():
        highs.setOptionValue(name, value)
    highs.passModel(_lp(segmented))
    if options.start is not None:
        start = highspy.HighsSolution()
        start.col_value = with_segments(model, options.start)
        highs.setSolution(start)
    remaining_s = options.remaining_s()
    if remaining_s is not None:
        highs.setOptionValue("time_limit", remaining_s)
    highs.run()
    info = highs.getInfo()
    has_values = info.primal_solution_status == 2  # kSolutionStatusFeasible
    status = _status(highs.getModelStatus(), has_values=has_values)
    if status not in {ModelStatus.OPTIMAL, ModelStatus.FEASIBLE}:
        highs_status = highs.modelStatusToString(highs.getModelStatus())
        return ModelAnswer(status=status, message=f"HiGHS ended with {highs_status}")
    return ModelAnswer(
        status=status,
        values=list(highs.getSolution().col_value)[: len(model.costs)],
        objective=float(info.objective_function_value),
        bound=float(info.mip_dual_bound),
    )


def _lp(model: LinearModel) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(model.costs), len(model.row_lower)
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = np.array(model.costs)
    lp.col_lower_, lp.col_upper_ = np.array(model.lower), np.array(model.upper)
    lp.row_lower_, lp.row_upper_ = np.array(model.row_lower), np.array(model.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array(model.starts)
    lp.a_matrix_.index_ = np.array(model.columns, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(model.factors)
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    lp.integrality_ = [kinds[is_integer] for is_integer in model.is_integer]
    return lp


def _status(highs_status: highspy.HighsModelStatus, *, has_values: bool) -> ModelStatus:
    if highs_status in LIMIT_STATUSES:
        return ModelStatus.FEASIBLE if has_values else ModelStatus.NOTHING
    return STATUSES.get(highs_status, ModelStatus.FAILED)
