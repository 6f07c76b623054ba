"""The published values (``expected.json``), read once.

The means of Tables 1, 2 and 4 stand there as the paper prints them, ``19:24 ± 00:26``.
"""

from __future__ import annotations

from dataclasses import dataclass

from bftrainer.lab.papers.expected_values import read_expected

EXPECTED = read_expected(__package__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A published mean of several runs, and what is printed after it; times are in minutes."""

    value: float
    spread: float = 0.0


def means(table: str, row: str) -> list[Mean]:
    """Return the means of a row by column."""
    return [_read(text) for text in EXPECTED.tables[table]["rows"][row]]


def _read(printed: str) -> Mean:
    value, _, spread = printed.partition(" ± ")
    return Mean(value=_number(value), spread=_number(spread or "0"))


def _number(printed: str) -> float:
    minutes, colon, seconds = printed.partition(":")
    return int(minutes) + int(seconds) / 60.0 if colon else float(printed)
