"""CBC by python-mip: a LinearModel in, its answer out; SOS2 sets become segments.

CBC takes SOS2 sets as they are, but not safely: of models that have an optimum it crashed
or hung on one in twenty (python-mip 1.15, more with a start), and python-mip 2.0 crashes
on each or calls it infeasible. With segments none did. It belongs in a child process
(``milp.reference.guard``) all the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mip
from mip.cbc import cbc_set_parameter

from milp.reference.backends import TOLERANCE, ModelAnswer, ModelStatus, SolveOptions
from milp.reference.linear_model import LinearModel, Terms, unzip, with_segments, write_segments

# Of the time left: CBC looks at the clock between steps, and those may be long.
SEARCH_SHARE = 0.9
STATUSES = {
    mip.OptimizationStatus.OPTIMAL: ModelStatus.OPTIMAL,
    mip.OptimizationStatus.FEASIBLE: ModelStatus.FEASIBLE,
    mip.OptimizationStatus.NO_SOLUTION_FOUND: ModelStatus.NOTHING,
    mip.OptimizationStatus.INFEASIBLE: ModelStatus.INFEASIBLE,
    mip.OptimizationStatus.INT_INFEASIBLE: ModelStatus.INFEASIBLE,
    mip.OptimizationStatus.UNBOUNDED: ModelStatus.UNBOUNDED,
}


def solve_model(model: LinearModel, options: SolveOptions) -> ModelAnswer:
    """Solve with CBC."""
    if not model.costs:
        return ModelAnswer(status=ModelStatus.OPTIMAL)
    cbc = mip.Model(sense=mip.MAXIMIZE, solver_name=mip.CBC)
    cbc.verbose = 0
    # 0 is one thread as well; 1 is a pool of one, whose end takes ten seconds at times.
    cbc.threads = 0
    # Its search for symmetries is where the crashes were that left a trace.
    cbc_set_parameter(cbc.solver, "orbit", "off")
    cbc_set_parameter(cbc.solver, "timeMode", "elapsed")
    cbc.seed = 0
    cbc.max_mip_gap = cbc.max_mip_gap_abs = 0.0
    cbc.integer_tol = cbc.infeas_tol = cbc.opt_tol = TOLERANCE
    columns = _load(cbc, write_segments(model))
    if options.start is not None:
        cbc.start = list(zip(columns, with_segments(model, options.start), strict=True))
    remaining_s = options.remaining_s()
    limit_s = math.inf
    if remaining_s is not None:
        limit_s = remaining_s * SEARCH_SHARE
    cbc_status = cbc.optimize(max_seconds=limit_s)
    status = STATUSES.get(cbc_status, ModelStatus.FAILED)
    if status not in {ModelStatus.OPTIMAL, ModelStatus.FEASIBLE}:
        return ModelAnswer(status=status, message=f"CBC ended with {cbc_status.name}")
    return ModelAnswer(
        status=status,
        values=[column.x for column in columns[: len(model.costs)]],
        objective=float(cbc.objective_value),
        bound=float(cbc.objective_bound),
    )


def _load(cbc: mip.Model, model: LinearModel) -> list[mip.Var]:
    columns: list[mip.Var] = []
    for lower, upper, cost, is_integer in zip(
        model.lower, model.upper, model.costs, model.is_integer, strict=True
    ):
        kind = mip.BINARY if is_integer else mip.CONTINUOUS
        columns.append(cbc.add_var(lb=lower, ub=upper, obj=cost, var_type=kind))
    for at_least, terms, at_most in model.rows():
        total = _sum(columns, terms)
        if at_least == at_most:
            cbc.add_constr(total == at_most)
            continue
        if at_least > -math.inf:
            cbc.add_constr(total >= at_least)
        if at_most < math.inf:
            cbc.add_constr(total <= at_most)
    return columns


def _sum(columns: Sequence[mip.Var], terms: Terms) -> mip.LinExpr:
    indices, factors = unzip(terms)
    return mip.LinExpr([columns[i] for i in indices], factors)
