"""One verdict for every published number, by how ours came about and how near it is.

``expected.json`` says of a line, or of all lines of a result, that it was ``fitted`` (the number
is among those of a fit) or ``predicted`` (by a fit on other numbers). A parameter that was chosen
among readings or settings counts as fitted. No verdict is written by hand.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib.resources import files
from typing import Any, Self

from bftrainer.lab.papers.findings import ValueLine, line_of
from bftrainer.lab.papers.paper import Paper, Reproduction, Result
from bftrainer.lab.papers.tolerances import tolerance

KEPT = ("key", "what", "ours", "paper", "half_unit", "holds", "missing")


class NumberVerdict(StrEnum):
    """What a referee may say of one number."""

    REPRODUCED = "reproduced"  # nothing is fitted on it; within the tolerance
    PREDICTED = "predicted"  # within it, from a fit on other numbers
    FITTED = "fitted"  # within it, and among the numbers of the fit
    ORDER = "order only"  # a statement without a number, or sizes that a test can refute
    MISSED = "not reproduced"
    UNTRIED = "not attempted"


def tolerance_of(line: ValueLine, result: Result) -> float | None:
    """Return by how much ours may differ, in the line's unit; None without a published number."""
    if line.paper is None:
        return None
    return tolerance(line.paper, line.half_unit, result.inputs, is_about=line.is_about)


def is_far(line: ValueLine, result: Result) -> bool:
    """Return whether a number deviates by more than the tolerance."""
    limit = tolerance_of(line, result)
    if limit is None or line.paper is None or line.ours is None:
        return False
    return abs(line.ours - line.paper) > limit


def verdict_of(line: ValueLine, result: Result) -> NumberVerdict | None:
    """Return the verdict; None of a line that is ours alone, or another reading."""
    if line.is_ours or line.reading_of or (line.paper is None and not line.says):
        return None
    if result.missing or line.missing:
        return NumberVerdict.UNTRIED
    if line.deviation is None or is_far(line, result):
        return NumberVerdict.ORDER if line.holds else NumberVerdict.MISSED
    if line.holds is False:
        return NumberVerdict.MISSED
    if line.fitted:
        return NumberVerdict.FITTED
    return NumberVerdict.PREDICTED if line.predicted else NumberVerdict.REPRODUCED


def missing_lines(result: Result) -> list[ValueLine]:
    """Return the published numbers of a result that is not attempted."""
    lines = []
    for key, entry in result.lines.items():
        values = entry.get("values", [None])
        lines += [line_of(key, entry, None, paper=value, holds=None) for value in values]
    return lines


def judged(reproduction: Reproduction) -> Iterator[tuple[Result, ValueLine, NumberVerdict]]:
    """Yield every published number with its verdict."""
    for result in reproduction.results:
        if result.missing:
            yield from _judged(result, missing_lines(result))
        else:
            yield from _judged(result, reproduction.findings[result.result_id].lines)


def _judged(
    result: Result, lines: Iterable[ValueLine]
) -> Iterator[tuple[Result, ValueLine, NumberVerdict]]:
    for line in lines:
        if verdict := verdict_of(line, result):
            yield result, line, verdict


def counts(verdicts: Iterable[NumberVerdict]) -> dict[NumberVerdict, int]:
    """Return how often each verdict was given."""
    times = Counter(verdicts)
    return {verdict: times[verdict] for verdict in NumberVerdict}  # those that were not given, too


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRun:
    """What the last full run of a paper found, ``full.json`` of its package."""

    recorded: Mapping[str, Any]  # date, commit, command, processor time
    ours: Mapping[str, list[dict[str, Any]]]  # result -> ``KEPT`` of its lines

    @classmethod
    def read(cls, package: str) -> Self | None:
        """Return it; None where none was made yet."""
        file = files(package).joinpath("full.json")
        if not file.is_file():
            return None
        return cls(**json.loads(file.read_text("utf-8")))

    @classmethod
    def of(cls, reproduction: Reproduction, recorded: Mapping[str, Any]) -> Self:
        """Return what is kept of a reproduction."""
        ours: dict[str, list[dict[str, Any]]] = {}
        for name, finding in reproduction.findings.items():
            ours[name] = []
            for line in finding.lines:
                ours[name].append({field: getattr(line, field) for field in KEPT})
        return cls(recorded=recorded, ours=ours)

    def with_later(self, later: Self, paper: Paper) -> Self:
        """Return this run with the results of a later one, which had some of the paper's."""
        newest = {**self.ours, **later.ours}
        ours = {}
        for result in paper.results:  # in the paper's order
            if result.result_id in newest:
                ours[result.result_id] = newest[result.result_id]
        runs = [*self.recorded.get("later", ()), later.recorded]
        return replace(self, recorded={**self.recorded, "later": runs}, ours=ours)

    def judged(self, paper: Paper) -> Iterator[tuple[Result, ValueLine, NumberVerdict]]:
        """Yield every published number with its verdict by what is expected today."""
        for result in paper.results:
            if result.missing:
                yield from _judged(result, missing_lines(result))
            else:
                yield from _judged(result, self._lines(result))

    def _lines(self, result: Result) -> list[ValueLine]:
        lines = []
        for row in self.ours.get(result.result_id, ()):  # none of a result that is newer
            key = row["key"]
            if key not in result.lines:
                continue
            entry = {**result.lines[key], "what": "", "why": ""}  # their words are formatted
            line = line_of(key, entry, row["ours"], paper=row["paper"], holds=row["holds"])
            parts: dict[str, Any] = {name: row[name] for name in ("what", "missing") if name in row}
            if "value" not in entry:  # it comes from a table, and the digits with it
                parts["half_unit"] = row.get("half_unit", 0.0)
            lines.append(replace(line, **parts))
        return lines

    def value_of(self, result: Result, line: ValueLine) -> float | None:
        """Return what the full run has for a line."""
        for row in self.ours.get(result.result_id, ()):
            if row["what"] == line.what:
                return row["ours"]  # type: ignore[no-any-return]
        return None
