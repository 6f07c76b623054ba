"""``bftrainer solve``: decide one problem with a solver of choice and show the answer.

Reads a problem file (docs/design/solver.md) and prints sizes, map and figures as tables or JSON.
Needs no daemon.
"""

from __future__ import annotations

import math
import re
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from bftrainer.cli.options import JSON, PATH, argument, option, verb
from bftrainer.cli.output import print_json, print_lines, print_table
from bftrainer.model.columns import shown
from bftrainer.model.errors import BftError, ExitCode, UsageError
from bftrainer.model.quantities import quantity, time_span

if TYPE_CHECKING:
    from milp.problem import CheckFailed, Problem, ProblemError
    from milp.reference.guard import LimitedAnswer

IN_PROCESS = ("exact", "dense")
SOLVERS = (*IN_PROCESS, "gurobi", "cbc", "highs")
SOLVER_MISSING = "BFT-3043"
LARGEST_FILE_BYTES = 64 * 1024 * 1024
HEADERS = ("TRAINER", ">NOW", ">SIZE", ">ONE MORE", ">ONE FEWER", "NODES")


def _refuse_nan(_: click.Context, option: click.Parameter, value: float | None) -> float | None:
    if value is not None and math.isnan(value):
        raise click.BadParameter("nan is not a number of seconds", param=option)
    return value


@verb(
    argument("file", metavar="PROBLEM.json"),
    option("--solver", "exact and dense are our own; the others solve the paper's node-level "
           "model.", click.Choice(SOLVERS), "exact"),
    option("--time-limit SECONDS", "For gurobi, cbc and highs: stop and use the best found, or the "
           "current map.", click.FloatRange(min=0, min_open=True, max=1e6), name="time_limit_s",
           callback=_refuse_nan),
    option("--dump-dir DIR", "Where the problem is kept when the solver fails.", PATH),
    JSON,
    example="bftrainer solve problem.json --solver highs --time-limit 10",
)  # fmt: skip
def solve(
    file: str, *, solver: str, time_limit_s: float | None, dump_dir: Path | None, as_json: bool
) -> None:
    """Decide PROBLEM.json ('-': standard input): which trainer gets which node."""
    from milp.problem import CheckFailed, ProblemError  # noqa: PLC0415 - numpy is slow

    text = _read(file)
    try:
        problem = _parse(text, file)
        decide = _decider(solver, time_limit_s, dump_dir)
        started_s = time.perf_counter()
        answer = decide(problem)
        took_s = time.perf_counter() - started_s
    except (ProblemError, CheckFailed) as error:
        raise _as_bft_error(error) from error
    if answer.failure:
        solved_by = f"This is the answer of {answer.allocation.solver}."
        print_lines(f"note: {shown(answer.failure)} {solved_by}", err=True)
    if as_json:
        print_json(_document(problem, answer, solver, took_s))
    else:
        _print(problem, answer, took_s)


def _read(file: str) -> bytes:
    try:
        if file == "-":
            text = sys.stdin.buffer.read(LARGEST_FILE_BYTES + 1)
        else:
            with Path(file).open("rb") as stream:
                text = stream.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise UsageError(
            "BFT-1017", f"{file} cannot be read: {error}.", "Name a file that you may read."
        ) from error
    if len(text) > LARGEST_FILE_BYTES:
        raise UsageError(
            "BFT-1017",
            f"{file} has more than {LARGEST_FILE_BYTES // 2**20} MiB.",
            "Give a smaller problem.",
        )
    return text


def _parse(text: bytes, file: str) -> Problem:
    """The problem; a wrong field is a ProblemError that names it."""
    from milp.codec import problem_from_dict  # noqa: PLC0415
    from milp.plain import FormError, parse  # noqa: PLC0415

    try:
        data = parse(text)
    except FormError as error:
        raise UsageError(
            "BFT-1018",
            f"{file} {error.problem}.",
            "Write one object with nodes, trainers, t_fwd_s and p_jmax (docs/design/solver.md).",
            exit_code=ExitCode.VALIDATION_FAILED,
        ) from error
    return problem_from_dict(data)


def _decider(
    solver: str, time_limit_s: float | None, dump_dir: Path | None
) -> Callable[[Problem], LimitedAnswer]:
    """Return the function that decides a problem; its imports are done, so that it can be timed."""
    from milp.check import check  # noqa: PLC0415
    from milp.reference.backends import ModelStatus, require_installed  # noqa: PLC0415 - numpy is slow
    from milp.reference.guard import LimitedAnswer  # noqa: PLC0415
    from milp.solve import solve as solve_exact  # noqa: PLC0415
    from milp.solve import solve_dense  # noqa: PLC0415

    def in_process(problem: Problem) -> LimitedAnswer:
        solve_problem = solve_dense if solver == "dense" else solve_exact
        allocation = solve_problem(problem)
        check(problem, allocation)
        status = ModelStatus.FEASIBLE if allocation.gap else ModelStatus.OPTIMAL
        return LimitedAnswer(allocation=allocation, status=status.value)

    if solver in IN_PROCESS:
        return in_process
    from bftrainer.lab.solvers.runner import solve_in_child  # noqa: PLC0415

    require_installed(solver)
    return partial(solve_in_child, solver=solver, time_limit_s=time_limit_s, dump_dir=dump_dir)


def _as_bft_error(error: ProblemError | CheckFailed) -> BftError:
    from milp.problem import ProblemError  # noqa: PLC0415

    if isinstance(error, ProblemError):
        exit_code = ExitCode.VALIDATION_FAILED
        if error.code == SOLVER_MISSING:
            exit_code = ExitCode.USAGE
        return BftError(error.code, error.cause, error.next_step, exit_code=exit_code)
    return BftError(
        error.code,
        f"The answer breaks its own problem's rules: {'; '.join(error.violations)}.",
        "Please report this with the problem; it is a defect.",
    )


def _rows(problem: Problem, answer: LimitedAnswer) -> list[dict[str, Any]]:
    """Per trainer what it has now and gets; FCFS order."""
    allocation, pool = answer.allocation, {node.name for node in problem.nodes}
    rows: list[dict[str, Any]] = []
    for trainer in problem.trainers:
        name = trainer.trainer_id
        nodes = [node for node, owner in allocation.assignment.items() if owner == name]
        row: dict[str, Any] = {
            "trainer_id": name,
            "now": sum(node in pool for node in trainer.current),
            "size": len(nodes),
            "gain_of_one_more": None,
            "loss_of_one_fewer": None,
            "nodes": sorted(nodes),
        }
        if marginal := allocation.marginals.get(name):
            row["gain_of_one_more"] = marginal.gain_of_one_more
            row["loss_of_one_fewer"] = marginal.loss_of_one_fewer
        rows.append(row)
    return rows


def _document(
    problem: Problem, answer: LimitedAnswer, solver: str, took_s: float
) -> dict[str, Any]:
    allocation, rows = answer.allocation, _rows(problem, answer)
    return {
        "schema": "bftrainer/solve/1",
        "solver": solver,
        "answered_by": allocation.solver,
        "status": answer.status,
        "failure": answer.failure or None,
        "objective": allocation.objective,
        "gap": allocation.gap,
        "node_price": allocation.node_price,
        "time_s": took_s,
        "sizes": {row["trainer_id"]: row["size"] for row in rows},
        "assignment": dict(sorted(allocation.assignment.items())),
        "trainers": rows,
    }


def _print(problem: Problem, answer: LimitedAnswer, took_s: float) -> None:
    allocation = answer.allocation
    gap = "0, this is the optimum"
    if allocation.gap:
        gap = quantity(allocation.gap, 6)
    print_lines(
        f"solver:     {shown(allocation.solver)} ({answer.status})",
        f"objective:  {quantity(allocation.objective, 12)} {problem.objective} x s",
        f"gap:        {gap}",
        f"node price: {quantity(allocation.node_price, 6)} (lambda: one node more)",
        f"nodes:      {len(allocation.assignment)} of {len(problem.nodes)} used",
        f"time:       {time_span(took_s)}",
    )
    rows = []
    for row in _rows(problem, answer):
        steps = _number(row["gain_of_one_more"]), _number(row["loss_of_one_fewer"])
        sizes = row["trainer_id"], str(row["now"]), str(row["size"])
        rows.append((*sizes, *steps, fold(row["nodes"]) or "-"))
    print_table(HEADERS, rows)


def _number(value: float | None) -> str:
    return "-" if value is None else quantity(value, 6)


class NameRun(NamedTuple):
    """Names that differ in a number alone, which rises by one."""

    prefix: str
    first: str
    last: str

    def __str__(self) -> str:
        if self.first == self.last:
            return f"{self.prefix}{self.first}"
        return f"{self.prefix}[{self.first}-{self.last}]"


def fold(names: Sequence[str]) -> str:
    """Return sorted names with runs of numbers in brackets: n[01-14],gpu3."""
    runs: list[NameRun] = []
    for name in names:
        prefix, number = re.fullmatch(r"(.*?)([0-9]{0,18})", name, re.DOTALL).groups()  # type: ignore[union-attr]  # matches any text
        if runs and number and runs[-1].prefix == prefix:
            last = runs[-1].last
            if last and len(last) == len(number) and int(number) == int(last) + 1:
                runs[-1] = runs[-1]._replace(last=number)
                continue
        runs.append(NameRun(prefix, number, number))
    return ",".join(map(str, runs))
