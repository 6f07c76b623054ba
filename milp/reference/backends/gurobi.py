"""Gurobi by gurobipy: a LinearModel in, its answer out, with SOS2 sets as they are.

The licence that comes with the package stops at 2,000 variables or constraints; then
the answer is ``refused`` and says so.
"""

from __future__ import annotations

import math

import gurobipy as gp

from milp.reference.backends import TOLERANCE, ModelAnswer, ModelStatus, SolveOptions
from milp.reference.linear_model import LinearModel, unzip

SIZE_LIMIT, NO_LICENCE = 10010, 10009
REFUSALS = {
    SIZE_LIMIT: "the model has {columns} variables and {rows} constraints, more than the"
    " licence of this Gurobi allows (the free one stops at 2,000 of either)",
    NO_LICENCE: "this Gurobi has no valid licence",
}
STATUSES = {
    gp.GRB.OPTIMAL: ModelStatus.OPTIMAL,
    gp.GRB.SUBOPTIMAL: ModelStatus.FEASIBLE,
    gp.GRB.TIME_LIMIT: ModelStatus.FEASIBLE,  # if it has any solution
    gp.GRB.INFEASIBLE: ModelStatus.INFEASIBLE,
    gp.GRB.UNBOUNDED: ModelStatus.UNBOUNDED,
}

SETTINGS: dict[str, int | float] = {
    "OutputFlag": 0,
    "Threads": 1,
    "Seed": 0,
    "MIPGap": 0.0,
    "MIPGapAbs": 0.0,
    "IntFeasTol": TOLERANCE,
    "FeasibilityTol": TOLERANCE,
    "OptimalityTol": TOLERANCE,
}


def solve_model(model: LinearModel, options: SolveOptions) -> ModelAnswer:
    """Solve with Gurobi."""
    try:
        with gp.Env(params=SETTINGS) as environment, gp.Model(env=environment) as gurobi:
            return _solve(gurobi, model, options)
    except gp.GurobiError as error:
        size = {"columns": len(model.costs), "rows": len(model.row_lower)}
        if error.errno in REFUSALS:
            message = REFUSALS[error.errno].format(**size)
            return ModelAnswer(status=ModelStatus.REFUSED, message=message)
        return ModelAnswer(
            status=ModelStatus.FAILED, message=f"Gurobi error {error.errno}: {error.message}"
        )


def _solve(gurobi: gp.Model, model: LinearModel, options: SolveOptions) -> ModelAnswer:
    kinds = [gp.GRB.BINARY if is_integer else gp.GRB.CONTINUOUS for is_integer in model.is_integer]
    indices = range(len(model.costs))
    variables = gurobi.addVars(
        indices, lb=model.lower, ub=model.upper, obj=model.costs, vtype=kinds
    )
    columns = list(variables.values())
    gurobi.ModelSense = gp.GRB.MAXIMIZE
    for at_least, terms, at_most in model.rows():
        term_columns, factors = unzip(terms)
        total = gp.LinExpr(factors, [columns[i] for i in term_columns])
        if at_least == at_most:
            gurobi.addLConstr(total, gp.GRB.EQUAL, at_most)
            continue
        if at_least > -math.inf:
            gurobi.addLConstr(total, gp.GRB.GREATER_EQUAL, at_least)
        if at_most < math.inf:
            gurobi.addLConstr(total, gp.GRB.LESS_EQUAL, at_most)
    for members in model.sos2:
        gurobi.addSOS(gp.GRB.SOS_TYPE2, [columns[i] for i in members])
    if options.start is not None:
        for column, value in zip(columns, options.start, strict=True):
            column.Start = value
    remaining_s = options.remaining_s()
    if remaining_s is not None:
        gurobi.Params.TimeLimit = remaining_s
    gurobi.optimize()
    return _read(gurobi, columns)


def _read(gurobi: gp.Model, columns: list[gp.Var]) -> ModelAnswer:
    status = STATUSES.get(gurobi.Status, ModelStatus.FAILED)
    if gurobi.Status == gp.GRB.TIME_LIMIT and not gurobi.SolCount:
        status = ModelStatus.NOTHING
    if status not in {ModelStatus.OPTIMAL, ModelStatus.FEASIBLE}:
        return ModelAnswer(status=status, message=f"Gurobi ended with status {gurobi.Status}")
    return ModelAnswer(
        status=status,
        values=[column.X for column in columns],
        objective=float(gurobi.ObjVal),
        bound=float(gurobi.ObjBound),
    )
