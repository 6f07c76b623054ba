"""The findings of a result: lines beside the published values, tables and charts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from bftrainer.lab.papers.tolerances import half_unit
from bftrainer.model.columns import TextTable
from bftrainer.model.lookups import by_name

Key = TypeVar("Key")
Value = TypeVar("Value")
Answer = TypeVar("Answer")
# What expected.json says of a line besides the parts of ``ValueLine``.
BESIDE_THE_LINE = {"source", "breaks", "values"}


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
    fitted: str = ""  # the fit that has this number among its own
    predicted: str = ""  # the fit on other numbers that ours comes from
    is_ours: bool = False  # beyond the paper
    is_about: bool = False  # the paper itself calls its number about so
    half_unit: float = 0.0  # of the last digit of the paper's number
    reading_of: str = ""  # "KEY" or "RESULT: KEY" of the line that has this number's verdict
    missing: str = ""  # why ours was not computed
    key: str = ""  # of the line in expected.json

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

    label: str  # ends with "paper" for published values
    x: tuple[Any, ...]
    y: tuple[float, ...]

    @property
    def is_papers(self) -> bool:
        """Return whether the values are published ones."""
        return self.label.endswith("paper")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One picture, axes with units."""

    name: str  # of the file, without its ending
    title: str
    x_label: str
    y_label: str
    has_bars: bool = False
    is_log: bool = False
    plotted: list[Plotted] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The lines, charts and tables computed for one result.

    ``known`` and ``drawn`` are the result's lines and charts by key, as ``expected.json`` has them.
    """

    known: Mapping[str, Mapping[str, Any]]
    drawn: Mapping[str, Mapping[str, Any]]
    lines: list[ValueLine] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)

    def line(
        self,
        key: str,
        ours: float | None,
        *,
        paper: float | None = None,
        holds: bool | None = None,
        why: str = "",
        missing: str = "",
        **words: object,
    ) -> ValueLine:
        """Add our value beside the published one.

        Args:
            key: of the line.
            ours: our value, in the line's unit.
            paper: the published value where it comes from a table.
            holds: whether the published statement holds here.
            why: the reason of a deviation, if neither the line's nor the result's fits.
            missing: why ours was not computed.
            words: what the placeholders of ``what`` and of the line's ``why`` stand for.
        """
        line = line_of(key, self.known[key], ours, paper=paper, holds=holds, why=why, words=words)
        if missing:
            line = replace(line, missing=missing)
        self.lines.append(line)
        return line

    def skip(self, missing: str, *keys: str) -> None:
        """Add lines, by default all, that were not computed; they have no placeholders."""
        for key in keys or self.known:
            self.line(key, None, missing=missing)

    def chart(
        self, key: str, x: Iterable[Any], ys: Mapping[str, Sequence[float]], **words: object
    ) -> None:
        """Draw lines, or bars, by label over x; a chart that is there gets more of them."""
        entry = dict(self.drawn[key])
        name = str(entry.pop("name", key)).format(**words)
        charts = by_name(self.charts)
        chart = charts.get(name)
        if chart is None:
            title = entry.pop("title").format(**words)
            chart = Chart(name=name, title=title, **entry)
            self.charts.append(chart)
        places = tuple(x)
        for label, y in ys.items():
            chart.plotted.append(Plotted(label=label, x=places, y=tuple(y)))

    def table(self, headers: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
        """Add a table."""
        self.tables.append(TextTable(headers=tuple(headers), rows=tuple(map(tuple, rows))))


def line_of(
    key: str,
    entry: Mapping[str, Any],
    ours: float | None,
    *,
    paper: float | None,
    holds: bool | None,
    why: str = "",
    words: Mapping[str, object] | None = None,
) -> ValueLine:
    """Return our value beside the published one; see ``Finding.line``."""
    parts = {name: part for name, part in entry.items() if name not in BESIDE_THE_LINE}
    fillings = words or {}
    subject = parts.pop("what", "").format(**fillings)
    reason = parts.pop("why", "").format(**fillings)
    number = parts.pop("value", paper)
    return ValueLine(
        key=key, what=subject, ours=ours, paper=None if number is None else float(number),
        half_unit=half_unit(number), holds=holds, why=why or reason, **parts,
    )  # fmt: skip


def tabulate(function: Callable[[Key], Answer], keys: Iterable[Key]) -> dict[Key, Answer]:
    """Return what a function says of each key, by key."""
    return {key: function(key) for key in keys}


def map_values(
    function: Callable[[Value], Answer], table: Mapping[Key, Value]
) -> dict[Key, Answer]:
    """Return what a function makes of each value, by the same keys."""
    return {key: function(value) for key, value in table.items()}


def percent(share: float) -> float:
    """Return a share as a percentage."""
    return 100.0 * share


def less(ours: float, rival: float) -> float:
    """Return by how many percent ours is less."""
    return percent(1.0 - ours / rival)


def ratio(value: float, denominator: float) -> float | None:
    """Return a ratio; None if the denominator is 0."""
    if not denominator:
        return None
    return value / denominator
