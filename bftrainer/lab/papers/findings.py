"""The findings of a result: lines beside the published values, tables and charts.

The published values are in the paper's ``expected.json``:

    {"citation": "...",
     "results": {RESULT: {LINE: {"what": ..., "unit": ..., "source": ..., "value" or "says": ...,
                                 "is_relative": ...}}},
     "tables": {TABLE: {"source": ..., "columns": [...], "rows": {NAME: [...]}}}}

A line with ``value`` has a number to compare with; one with ``says`` quotes a statement; one with
neither gets the published value from the code that asks, which takes it from a table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLine:
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
        """Return whether the deviation is a difference of percentages."""
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
    """The lines, charts and tables computed for one result."""

    lines: tuple[ValueLine, ...]
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()


def percent(share: float) -> float:
    """Return a share as a percentage."""
    return 100.0 * share


def ratio(value: float, other: float) -> float | None:
    """Return a ratio; None if the denominator is 0."""
    return value / other if other else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperValues:
    """The published values of one paper."""

    citation: str
    results: dict[str, dict[str, Any]]
    tables: dict[str, dict[str, Any]]

    def line(
        self,
        result: str,
        key: str,
        ours: float | None,
        *,
        paper: float | None = None,
        holds: bool | None = None,
        why: str = "",
        **words: object,
    ) -> ValueLine:
        """Return our value beside the published one.

        Args:
            result: the result's id.
            key: of the line.
            ours: our value, in the line's unit.
            paper: the published value where it comes from a table.
            holds: whether the published statement holds here.
            why: the reason of a deviation, if the result's does not fit.
            words: what the placeholders of ``what`` stand for.
        """
        entry = self.results[result][key]
        return ValueLine(
            what=entry["what"].format(**words),
            ours=ours,
            paper=entry.get("value", paper),
            unit=entry.get("unit", "%"),
            says=entry.get("says", ""),
            holds=holds,
            why=why,
            is_relative=entry.get("is_relative", False),
        )


def read_expected(package: str) -> PaperValues:
    """Read the ``expected.json`` of a package."""
    return PaperValues(**json.loads(files(package).joinpath("expected.json").read_text("utf-8")))
