"""``scripts/promises.ini`` beside what was measured: promises, their worst rows, their verdicts.

Pure but for the reading of that file; its head says what the keys mean. ``scripts/promises.py``
measures, ``scripts/write_results.py`` writes the tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from configparser import ConfigParser, SectionProxy
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from _bench.targets import ROOT, Target

FILE: Final = ROOT / "scripts" / "promises.ini"
RESULT, PROMISE = "result ", "promise "  # kinds of sections, before their names
MANY: Final = 1000.0  # from here on numbers are told without decimals


class Verdict(StrEnum):
    """What a measurement says of a promise."""

    HELD = "held"
    UNSURE = "unsure"  # missed, by less than the interval
    MISSED = "missed"  # and so is the stored result: no news
    LOST = "lost"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The commands that measure a stored result."""

    result: str  # docs/results/RESULT.json
    full: str  # command, without scripts/
    full_minutes: float
    short: str  # "": there is none
    short_minutes: float
    code: tuple[str, ...]  # paths of what is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """One sentence, and the rows of a result in which it is measured."""

    name: str
    says: str
    result: str
    rows: str  # regular expression
    limit: float | None  # None: each row's own
    beside_rows: str  # of the alternative in the same run; "": there is none
    beside: str
    is_in_readme: bool

    def worst_of(self, targets: Sequence[Target]) -> Target | None:
        """Return the row that counts, with the promise's limit; None: it was not measured."""
        rows = _matching(self.rows, targets)
        if self.limit is not None:
            rows = [replace(row, limit=self.limit) for row in rows]
        return _worst(rows)

    def case_of(self, row: Target) -> str:
        """Return the part of a row's name that says which case it is; "": there is one alone."""
        match = re.fullmatch(self.rows, row.name)
        return ", ".join(match.groups()).replace("->", " to ") if match else ""

    def alternative_of(self, targets: Sequence[Target]) -> str:
        """Return the sentence on the alternative; "": it was not measured."""
        row = _worst(_matching(self.beside_rows, targets))
        if row is None:
            return ""
        digits = ",.0f" if row.measured >= MANY else ".3g"
        return self.beside.format(format(row.measured, digits))


def recipes(path: Path = FILE) -> dict[str, Recipe]:
    """Return how each result is measured, by its name."""
    return {
        name: Recipe(
            result=name,
            full=section["full"],
            full_minutes=float(section["full_minutes"]),
            short=section.get("short", ""),
            short_minutes=section.getfloat("short_minutes", 0.0),
            code=tuple(section.get("code", "").split()),
        )
        for name, section in _sections(path, RESULT)
    }


def promises(path: Path = FILE) -> list[Promise]:
    """Return all promises, in their order."""
    return [
        Promise(
            name=name,
            says=section["says"],
            result=section["result"],
            rows=section["rows"],
            limit=section.getfloat("limit"),
            beside_rows=section.get("beside_rows", ""),
            beside=section.get("beside", ""),
            is_in_readme=section.getboolean("in_readme", fallback=False),
        )
        for name, section in _sections(path, PROMISE)
    ]


def verdict_of(row: Target | None, stored: Target | None = None) -> Verdict:
    """Return what a row says beside the stored one; without an interval its measurement decides."""
    if row is None:
        return Verdict.NOT_MEASURED
    if row.is_met:
        return Verdict.HELD
    best = row.low if row.relation == "<=" else row.high
    if best is not None and replace(row, measured=best).is_met:
        return Verdict.UNSURE
    if stored is not None and not stored.is_met:
        return Verdict.MISSED
    return Verdict.LOST


def _sections(path: Path, kind: str) -> Iterator[tuple[str, SectionProxy]]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.read_string(path.read_text(encoding="utf-8"), str(path))
    for title in parser.sections():
        if title.startswith(kind):
            yield title.removeprefix(kind), parser[title]


def _matching(rows: str, targets: Sequence[Target]) -> list[Target]:
    return [target for target in targets if re.fullmatch(rows, target.name)]


def _worst(rows: Sequence[Target]) -> Target | None:
    """Return the row that is furthest on the wrong side; all are of one relation."""
    if not rows:
        return None
    by_size = sorted(rows, key=lambda row: row.measured)
    return by_size[-1 if rows[0].relation == "<=" else 0]
