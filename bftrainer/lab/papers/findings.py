"""What a result consists of: lines beside the published values, tables and charts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One value of ours beside the paper's.

    A value in ``%`` deviates in points unless ``is_relative``, any other in percent of the paper's
    value. If the paper gives no number, ``says`` quotes its statement and ``holds`` tells whether
    it holds here.
    """

    what: str
    ours: float | None
    paper: float | None = None
    unit: str = "%"
    says: str = ""
    holds: bool | None = None
    why: str = ""  # this line deviates, if the result's reason does not fit
    is_relative: bool = False  # deviates in percent of the paper's value, whatever its unit

    @property
    def deviates_in_points(self) -> bool:
        """Whether the deviation is a difference of percentages."""
        return self.unit == "%" and not self.is_relative

    @property
    def deviation(self) -> float | None:
        """Return ours minus the paper's, in points or in percent of the paper's."""
        if self.ours is None or self.paper is None:
            return None
        if self.deviates_in_points:
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
class Reproduced:
    """What was computed for one result."""

    lines: tuple[Line, ...]
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()


def percent(share: float) -> float:
    """Return a share as a percentage."""
    return 100.0 * share


def ratio(value: float, other: float) -> float | None:
    """Return a ratio; None if the denominator is 0."""
    return value / other if other else None
