"""What a finding makes of records that a test invents; lines and charts go by their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bftrainer.lab.papers.findings import Finding, ValueLine
from bftrainer.lab.papers.paper import Extent, Find, Paper, Result, Scenario, reproduce


class _Lines(dict[str, Mapping[str, Any]]):
    def __missing__(self, key: str) -> Mapping[str, Any]:
        return {"what": key}


class _Charts(dict[str, Mapping[str, Any]]):
    def __missing__(self, key: str) -> Mapping[str, Any]:
        return {"title": key, "x_label": "", "y_label": ""}


def found(find: Find, extent: Extent, play: Callable[[Any], Any]) -> Finding:
    """Return the finding with what ``play`` says of each replay that it asks for."""
    scenario = Scenario(summary="", document={})
    result = Result(result_id="x", shows="", lines=_Lines(), charts=_Charts(), find=find)
    paper = Paper(
        citation="", section="", results=(result,), full=extent, quick=extent,
        choose_scenario=lambda *_: scenario, play=lambda _, run: play(run),
    )  # fmt: skip
    return reproduce(paper, scenario, extent, [result], processes=1).findings["x"]


def by_key(finding: Finding) -> dict[str, ValueLine]:
    """Return the lines by key, the last of those that have the same."""
    return {line.what: line for line in finding.lines}


def values(finding: Finding) -> dict[str, float | None]:
    """Return our values by key."""
    return {key: line.ours for key, line in by_key(finding).items()}


def held(finding: Finding) -> dict[str, bool | None]:
    """Return whether the statements hold, by key."""
    return {key: line.holds for key, line in by_key(finding).items()}
