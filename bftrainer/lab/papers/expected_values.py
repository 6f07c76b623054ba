"""Published values of a paper, from its ``expected.json``.

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

from bftrainer.lab.papers.findings import Line


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
    ) -> Line:
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
        return Line(
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
