"""A mixed-integer linear model as plain data: columns, rows, SOS2 sets, an objective.

Written by ``milp.reference.node_model``, read by ``milp.reference.backends``; knows
nothing of trainers. Always a maximisation. Every row and column carries the label of its
group, so that a model can be read beside the equations it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

Terms: TypeAlias = list[tuple[int, float]]  # (column, factor)


@dataclass(slots=True, kw_only=True)
class LinearModel:
    """Maximise ``costs @ v`` with ``row_lower <= rows @ v <= row_upper``, bounds, sets.

    Rows are stored one after the other: row i has the columns and factors from
    ``starts[i]`` up to ``starts[i + 1]``.
    """

    costs: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    is_integer: list[bool] = field(default_factory=list)
    column_groups: list[str] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)
    row_groups: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    columns: list[int] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    # Ordered columns of which at most two, neighbours, may differ from 0.
    sos2: list[tuple[int, ...]] = field(default_factory=list)

    def binary(self, group: str) -> int:
        """Add a 0/1 column, return its index."""
        return self.column(group, 0.0, 1.0, is_integer=True)

    def column(self, group: str, lower: float, upper: float, *, is_integer: bool = False) -> int:
        """Add a column, return its index."""
        self.costs.append(0.0)
        self.lower.append(lower)
        self.upper.append(upper)
        self.is_integer.append(is_integer)
        self.column_groups.append(group)
        return len(self.costs) - 1

    def row(
        self,
        group: str,
        terms: Terms,
        *,
        at_least: float = -math.inf,
        at_most: float = math.inf,
    ) -> None:
        """Add ``at_least <= sum of factor * column <= at_most``."""
        columns, factors = unzip(terms)
        self.columns += columns
        self.factors += factors
        self.starts.append(len(self.columns))
        self.row_lower.append(at_least)
        self.row_upper.append(at_most)
        self.row_groups.append(group)

    def equal(self, group: str, terms: Terms, value: float) -> None:
        """Add ``sum of factor * column = value``."""
        self.row(group, terms, at_least=value, at_most=value)

    def rows(self) -> Iterator[tuple[float, Terms, float]]:
        """Every row that has columns, as (at least, terms, at most)."""
        for i, (at_least, at_most) in enumerate(zip(self.row_lower, self.row_upper, strict=True)):
            span = slice(self.starts[i], self.starts[i + 1])
            terms = list(zip(self.columns[span], self.factors[span], strict=True))
            if terms:
                yield at_least, terms, at_most


def unzip(terms: Terms) -> tuple[list[int], list[float]]:
    """Return the columns and the factors of the terms."""
    columns: list[int] = []
    factors: list[float] = []
    for column, factor in terms:
        columns.append(column)
        factors.append(factor)
    return columns, factors


def negative(terms: Terms) -> Terms:
    """The same terms with the other sign."""
    return [(column, -factor) for column, factor in terms]


def write_segments(model: LinearModel) -> LinearModel:
    """The same model without SOS2 sets, for solvers that have none.

    Each set becomes one binary per pair of neighbours, of which one is chosen; a column
    may differ from 0 only next to the chosen pair. New columns follow the old ones.
    """
    lists: dict[str, Any] = {}  # copies: the given model stays as it is
    for list_field in fields(model):
        lists[list_field.name] = list(getattr(model, list_field.name))
    segmented = LinearModel(**lists)
    segmented.sos2.clear()
    for members in model.sos2:
        segments = [segmented.binary("segment") for _ in members[1:]]
        if not segments:
            continue
        segmented.equal("segment", [(segment, 1.0) for segment in segments], 1.0)
        for i, column in enumerate(members):
            around, upper = segments[max(i - 1, 0) : i + 1], model.upper[column]
            terms = [(column, 1.0), *[(segment, -upper) for segment in around]]
            segmented.row("segment", terms, at_most=0.0)
    return segmented


def with_segments(model: LinearModel, values: Sequence[float]) -> list[float]:
    """Values of ``model``'s columns extended by those that ``write_segments`` adds."""
    extended = list(values)
    for members in model.sos2:
        segments = [0.0] * (len(members) - 1)
        if segments:
            first = next((i for i, column in enumerate(members) if values[column] != 0), 0)
            segments[min(first, len(segments) - 1)] = 1.0
        extended += segments
    return extended


def worth(model: LinearModel, values: Sequence[float]) -> float:
    """The objective at these values."""
    return math.fsum(c * v for c, v in zip(model.costs, values, strict=True) if c)
