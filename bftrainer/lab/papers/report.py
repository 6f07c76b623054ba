"""Findings -> the JSON document and the rows of the table.

This module alone decides which lines deviate and what is said about them.
"""

from __future__ import annotations

from typing import Any

from bftrainer.lab.papers.findings import Line
from bftrainer.lab.papers.paper import Result
from bftrainer.lab.papers.reproduction import Reproduction

SCHEMA = "bftrainer/reproduction/1"
HEADERS = ("RESULT", "WHAT", ">OURS", ">PAPER", ">DEVIATION", "WHY")


def remarks(made: Reproduction) -> list[str]:
    """Return what a reader must know before any value."""
    shortened = made.extent.shortened
    return made.scenario.remarks() + ([f"Shortened (--quick): {shortened}"] if shortened else [])


def explain(line: Line, result: Result, made: Reproduction) -> str:
    """Return why a line deviates by more than the tolerance; empty if it does not."""
    deviation = line.deviation
    is_far = deviation is not None and abs(deviation) > result.tolerance
    if not is_far and line.holds is not False:
        return ""
    if not made.scenario.is_papers:
        return "another trace"
    why = line.why or result.why
    if made.extent.shortened:
        return f"shortened; in full: {why}" if why else "shortened"
    return why or "not explained"


def document(made: Reproduction) -> dict[str, Any]:
    """Return the JSON document; the same replays give the same document."""
    return {
        "schema": SCHEMA,
        "paper": made.paper.citation,
        **made.scenario.document(),
        "extent": made.extent.name,
        "remarks": remarks(made),
        "results": [_result(result, made) for result in made.results],
    }


def _result(result: Result, made: Reproduction) -> dict[str, Any]:
    about: dict[str, Any] = {"id": result.result_id, "shows": result.shows}
    if result.missing:
        return about | {"status": "not available", "why": result.missing}
    finding = made.findings[result.result_id]
    return about | {
        "status": "computed",
        "how": result.how,
        "tolerance": result.tolerance,
        "lines": [
            {
                "what": line.what,
                "ours": line.ours,
                "paper": line.paper,
                "unit": line.unit,
                "deviation": line.deviation,
                "says": line.says,
                "holds": line.holds,
                "why": explain(line, result, made),
            }
            for line in finding.lines
        ],
        "figures": [
            {
                "name": chart.name,
                "title": chart.title,
                "x": chart.x_label,
                "y": chart.y_label,
                "data": [{"label": p.label, "x": list(p.x), "y": list(p.y)} for p in chart.plotted],
            }
            for chart in finding.charts
        ],
    }


def rows(made: Reproduction, *, most: int | None = None) -> list[tuple[str, ...]]:
    """Return the rows of the table, at most ``most`` per result."""
    found: list[tuple[str, ...]] = []
    for result in made.results:
        if result.missing:
            about = (result.result_id, result.shows, "not available", "", "")
            found.append((*about, result.missing))
            continue
        lines = made.findings[result.result_id].lines
        found += [row(line, result, made) for line in lines[:most]]
        if most is not None and len(lines) > most:
            more = f"... {len(lines) - most} more in --out or --json"
            found.append((result.result_id, more, "", "", "", ""))
    return found


def row(line: Line, result: Result, made: Reproduction) -> tuple[str, ...]:
    """Return one row of the table."""
    deviation = line.deviation
    if deviation is not None:
        shown = f"{deviation:+.1f} {'points' if line.deviates_in_points else '%'}"
    else:
        shown = {True: "as in the paper", False: "not as in the paper", None: ""}[line.holds]
    return (
        result.result_id,
        line.what,
        "-" if line.ours is None else _number(line.ours, line.unit),
        _papers(line),
        shown,
        explain(line, result, made),
    )


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1f}%"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits}{'' if unit == 'x' else ' '}{unit}"


def _papers(line: Line) -> str:
    """Return the paper's value, or what it says; nothing of what is ours alone."""
    if line.paper is not None:
        return _number(line.paper, line.unit)
    return f'"{line.says}"' if line.says else ""
