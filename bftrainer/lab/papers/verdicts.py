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
    allowed = tolerance_of(line, result)
    if allowed is None or line.paper is None or line.ours is None:
        return False
    return abs(line.ours - line.paper) > allowed


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
    return [
        line_of(key, known, None, paper=value, holds=None)
        for key, known in result.lines.items()
        for value in known.get("values", [None])
    ]


def judged(made: Reproduction) -> Iterator[tuple[Result, ValueLine, NumberVerdict]]:
    """Yield every published number with its verdict."""
    for result in made.results:
        lines = missing_lines(result) if result.missing else made.findings[result.result_id].lines
        yield from _judged(result, lines)


def _judged(
    result: Result, lines: Iterable[ValueLine]
) -> Iterator[tuple[Result, ValueLine, NumberVerdict]]:
    for line in lines:
        if verdict := verdict_of(line, result):
            yield result, line, verdict


def counts(verdicts: Iterable[NumberVerdict]) -> dict[NumberVerdict, int]:
    """Return how often each verdict was given."""
    found = Counter(verdicts)
    return {verdict: found[verdict] for verdict in NumberVerdict}


@dataclass(frozen=True, slots=True, kw_only=True)
class FullRun:
    """What the last full run of a paper found, ``full.json`` of its package."""

    recorded: Mapping[str, Any]  # date, commit, command, processor time
    ours: Mapping[str, list[dict[str, Any]]]  # result -> ``KEPT`` of its lines

    @classmethod
    def read(cls, package: str) -> Self | None:
        """Return it; None where none was made yet."""
        file = files(package).joinpath("full.json")
        return cls(**json.loads(file.read_text("utf-8"))) if file.is_file() else None

    @classmethod
    def of(cls, made: Reproduction, recorded: Mapping[str, Any]) -> Self:
        """Return what is kept of a reproduction."""
        ours = {
            name: [{field: getattr(line, field) for field in KEPT} for line in finding.lines]
            for name, finding in made.findings.items()
        }
        return cls(recorded=recorded, ours=ours)

    def with_later(self, later: Self, paper: Paper) -> Self:
        """Return this run with the results of a later one, which had some of the paper's."""
        own = [one.result_id for one in paper.results]
        both = {**self.ours, **later.ours}
        ours = {name: both[name] for name in own if name in both}
        runs = [*self.recorded.get("later", ()), later.recorded]
        return replace(self, recorded={**self.recorded, "later": runs}, ours=ours)

    def judged(self, paper: Paper) -> Iterator[tuple[Result, ValueLine, NumberVerdict]]:
        """Yield every published number with its verdict by what is expected today."""
        for result in paper.results:
            lines = missing_lines(result) if result.missing else self._lines(result)
            yield from _judged(result, lines)

    def _lines(self, result: Result) -> list[ValueLine]:
        lines = []
        kept_lines = self.ours.get(result.result_id, ())  # none of a result that is newer
        for one in (line for line in kept_lines if line["key"] in result.lines):
            known = {**result.lines[one["key"]], "what": "", "why": ""}  # their words are formatted
            line = line_of(one["key"], known, one["ours"], paper=one["paper"], holds=one["holds"])
            kept: dict[str, Any] = {k: one[k] for k in ("what", "missing") if k in one}
            if "value" not in known:  # it comes from a table, and the digits with it
                kept["half_unit"] = one.get("half_unit", 0.0)
            lines.append(replace(line, **kept))
        return lines

    def value_of(self, result: Result, line: ValueLine) -> float | None:
        """Return what the full run has for a line."""
        lines = self.ours.get(result.result_id, ())
        return next((one["ours"] for one in lines if one["what"] == line.what), None)
