"""Solvers of linear models behind one function each: HiGHS, Gurobi, CBC.

A LinearModel comes in, a ModelAnswer goes out. A backend's package is imported when it
is used, and not before.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from milp.problem import ProblemError
from milp.reference.linear_model import LinearModel

# name -> (module here, package it needs, how that is installed)
BACKENDS = {
    "highs": ("milp.reference.backends.highs", "highspy", "pip install highspy"),
    "gurobi": ("milp.reference.backends.gurobi", "gurobipy", "pip install 'bftrainer[gurobi]'"),
    "cbc": ("milp.reference.backends.cbc", "mip", "pip install 'bftrainer[mip]'"),
}
TOLERANCE = 1e-9  # of rows and of whole numbers, where a solver lets us choose


class ModelStatus(enum.StrEnum):
    """The outcome of a solver."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"  # the limit came first; this is the best so far
    NOTHING = "nothing"  # the limit came first and nothing was found
    INFEASIBLE = "infeasible"
    UNBOUNDED = "unbounded"
    REFUSED = "refused"  # it would not take the model: licence or size
    FAILED = "failed"  # anything else; ``message`` says what


def no_limit() -> float | None:
    """Time left without a limit."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """The options of a solver; the same model and options give the same answer."""

    # Time left in seconds, asked when the model is loaded, which takes its own; None: no limit.
    remaining_s: Callable[[], float | None] = no_limit
    start: Sequence[float] | None = None  # values of all columns to begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """The answer of a solver; ``values`` is empty unless optimal or feasible."""

    status: ModelStatus
    values: Sequence[float] = ()
    objective: float = 0.0
    bound: float = 0.0  # nothing is worth more
    message: str = ""

    @property
    def gap(self) -> float:
        """The most that the optimum may be worth beyond the answer, in units of the objective."""
        return max(self.bound - self.objective, 0.0)


class Backend(Protocol):
    """A solver."""

    def __call__(self, model: LinearModel, options: SolveOptions) -> ModelAnswer:
        """Solve the model on one thread."""
        ...


def is_installed(name: str) -> bool:
    """Return whether a backend's package is there; it is not imported."""
    return importlib.util.find_spec(BACKENDS[name][1]) is not None


def require_installed(name: str) -> None:
    """Refuse a backend that cannot be used here.

    Raises:
        ProblemError: there is none of that name, or its package is not installed.
    """
    if name not in BACKENDS:
        raise ProblemError(
            "BFT-3042", f"There is no solver {name!r}.", f"Choose one of {', '.join(BACKENDS)}."
        )
    _, package, install = BACKENDS[name]
    if not is_installed(name):
        raise ProblemError(
            "BFT-3043", f"The solver {name} needs the package {package}.", f"Run: {install}"
        )


def load_backend(name: str) -> Backend:
    """Return the backend of that name.

    Raises:
        ProblemError: as ``require_installed``.
    """
    require_installed(name)
    solve_model: Backend = importlib.import_module(BACKENDS[name][0]).solve_model
    return solve_model
