"""What a result of the paper is here: lines beside the paper's values, tables and charts.

Results make ``ReproducedResult``s from records; the report and the command line show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bftrainer.simulate.reproduce.extent import Extent
from bftrainer.simulate.reproduce.runs import PaperReplay, Record

Records = Mapping[PaperReplay, Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One value of ours beside the paper's.

    Units: ``%`` deviates in points; any other in percent of the paper's value. Where the
    paper gives no number, ``says`` is its statement and ``holds`` whether it is so here.
    """

    what: str
    ours: float | None
    paper: float | None = None
    unit: str = "%"
    says: str = ""
    holds: bool | None = None
    why: str = ""  # of this line, if the result's explanation does not fit

    @property
    def deviation(self) -> float | None:
        """Ours less the paper's: in points, or in percent of the paper's."""
        if self.ours is None or self.paper is None:
            return None
        if self.unit == "%":
            return self.ours - self.paper
        return 100.0 * (self.ours / self.paper - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plotted:
    """One line, or one group of bars, of a chart; x may be names."""

    label: str
    x: tuple[float, ...] | tuple[str, ...]
    y: tuple[float, ...]
    is_papers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture, axes with units."""

    name: str  # of the file, without its ending
    title: str
    x_label: str
    y_label: str
    plotted: tuple[Plotted, ...]
    has_bars: bool = False
    is_log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of text for the report."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedResult:
    """What came out for one result."""

    lines: tuple[Line, ...]
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result of the paper's evaluation.

    ``missing`` says why the available data cannot give it; then nothing is played.
    """

    result_id: str
    shows: str  # what the paper shows
    how: str  # how ours is computed
    why: str = ""  # where lines deviate by more than the tolerance
    tolerance: float = 2.0  # points, or percent
    runs: Callable[[Extent], tuple[PaperReplay, ...]] = lambda _: ()
    find: Callable[[Records, Extent], ReproducedResult] | None = None
    missing: str = ""


def percent(share: float) -> float:
    """Return a share as a percentage."""
    return 100.0 * share


def over(value: float, other: float) -> float | None:
    """Return a ratio; None where a trace is so quiet that there is none."""
    return value / other if other else None


def is_more(value: float | None, bound: float) -> bool | None:
    """Whether a value is above a bound; None where there is no value."""
    return None if value is None else value > bound
