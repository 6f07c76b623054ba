"""How long calls take: one line of a table per solver, family and size of the problems.

The time of one problem is the best of a few calls, the one that nothing else on the
machine interrupted; median, 95th percentile and maximum are over the problems.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ParamSpec, TypeVar

from rich.table import Table

from _bench.stats import quantile
from _bench.targets import Target, at_most

CALLS = 5
ENOUGH_S = 1.0  # calls so long are not interrupted as easily: fewer of them will do

_T = TypeVar("_T")
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    what: str  # what was timed, or which solver
    family: str
    trainers: int
    nodes: int
    runs: int
    median_s: float
    p95_s: float
    max_s: float
    outcome: str = ""  # e.g. "optimal", "mean gap 0.1 %", "refused"
    at_limit: int = 0  # of the runs: ended by the time limit, so the times are too small


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one part of a benchmark found: its lines, and what they have to show."""

    title: str
    rows: tuple[Row, ...] = ()
    targets: tuple[Target, ...] = ()


def best_of(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> tuple[float, _T]:
    """Return the seconds of the best of a few calls, and the last result."""
    times_s: list[float] = []
    while True:
        before = time.perf_counter()
        result = call(*args, **kwargs)
        times_s.append(time.perf_counter() - before)
        if len(times_s) == CALLS or sum(times_s) > ENOUGH_S:
            return min(times_s), result


def summary(
    what: str,
    family: str,
    size: tuple[int, int],
    times_s: Sequence[float],
    outcome: str = "",
    at_limit: int = 0,
) -> Row:
    """One line from the times of single problems; ``size`` is trainers x nodes."""
    return Row(
        what=what,
        family=family,
        trainers=size[0],
        nodes=size[1],
        runs=len(times_s),
        median_s=median(times_s),
        p95_s=quantile(times_s, 0.95),
        max_s=max(times_s),
        outcome=outcome,
        at_limit=at_limit,
    )


def median_target(name: str, row: Row, limit_s: float) -> Target:
    """The median of a line has a limit."""
    size = f"{row.trainers} x {row.nodes}"
    return at_most(f"{name}, {size}", row.median_s, limit_s, note=f"median of {row.runs}")


def max_target(name: str, row: Row, limit_s: float) -> Target:
    """The maximum of a line has a limit."""
    size = f"{row.trainers} x {row.nodes}"
    return at_most(f"{name}, {size}", row.max_s, limit_s, note=f"maximum of {row.runs}")


def table_of(title: str, rows: Sequence[Row]) -> Table:
    """Return the table, times in ms."""
    table = Table(title=title, title_justify="left")
    for heading in ("", "problems", "trainers", "nodes", "runs", "median ms", "p95 ms", "max ms"):
        table.add_column(heading, justify="left" if heading in {"", "problems"} else "right")
    table.add_column("outcome")
    for row in rows:
        table.add_row(
            row.what,
            row.family,
            str(row.trainers),
            str(row.nodes),
            str(row.runs),
            *(milliseconds(value) for value in (row.median_s, row.p95_s, row.max_s)),
            row.outcome,
        )
    return table


def milliseconds(value_s: float) -> str:
    """A time for a table, in ms."""
    ms = 1000 * value_s
    return f"{ms:.3f}" if ms < 100 else f"{ms:,.0f}"
