"""Findings → one JSON document, one Markdown report, rows for the terminal.

All three say the same; only here is decided what counts as a deviation and how it is
explained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftrainer.simulate.reproduce.extent import Extent
from bftrainer.simulate.reproduce.findings import Line, ReproducedResult, Result
from bftrainer.simulate.reproduce.scene import Scene

SCHEMA = "bftrainer/reproduction/1"
PAPER = "Liu et al., BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer "
PAPER += "Nodes, arXiv 2106.12091"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """Everything that came out."""

    scene: Scene
    extent: Extent
    results: tuple[Result, ...]
    findings: Mapping[str, ReproducedResult]  # by result_id; none of what is missing
    pictures: Mapping[str, str]  # chart's name -> file name


def remarks(made: Reproduction) -> list[str]:
    """Return what a reader must know before any number."""
    scene, found = made.scene, []
    if scene.is_synthetic:
        found.append(
            "The original data were not found (BFTRAINER_DATA): this is the generated sample "
            "trace, and its numbers are NOT comparable with the paper's."
        )
    elif not scene.is_papers:
        found.append(
            f"{scene.source} is not the paper's week of 1,024 Summit nodes: "
            "the numbers are not comparable with the paper's."
        )
    if made.extent.shortened:
        found.append(f"Shortened (--quick): {made.extent.shortened}")
    if scene.diverse_file is None:
        found.append("Diverse trainers: generated (Poisson arrivals), not the published list.")
    return found


def explain(line: Line, result: Result, made: Reproduction) -> str:
    """Return one sentence where a line is further from the paper than the tolerance."""
    deviation = line.deviation
    is_far = deviation is not None and abs(deviation) > result.tolerance
    if not is_far and line.holds is not False:
        return ""
    if not made.scene.is_papers:
        return "another trace"
    why = line.why or result.why
    if made.extent.shortened:
        return f"shortened; in full: {why}" if why else "shortened"
    return why or "not explained"


def document(made: Reproduction) -> dict[str, Any]:
    """Return everything as one JSON document; the same replay gives the same document."""
    trace = made.scene.trace
    return {
        "schema": SCHEMA,
        "paper": PAPER,
        "trace": {
            "file": made.scene.source,
            "is_papers": made.scene.is_papers,
            "is_synthetic": made.scene.is_synthetic,
            "nodes": len(trace.names),
            "start_s": trace.span_s[0],
            "hours": trace.duration_s / 3600.0,
            "events": len(trace.pool_changes()),
            "n_eq": trace.equivalent_nodes(),
        },
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


HEADERS = ("RESULT", "WHAT", ">OURS", ">PAPER", ">DEVIATION", "WHY")


def rows(made: Reproduction, *, most: int | None = None) -> list[tuple[str, ...]]:
    """Return the table; ``most``: no more lines per result, the rest is in the documents."""
    found: list[tuple[str, ...]] = []
    for result in made.results:
        if result.missing:
            about = (result.result_id, result.shows, "not available", "", "")
            found.append((*about, result.missing))
            continue
        lines = made.findings[result.result_id].lines
        found += [_row(line, result, made) for line in lines[:most]]
        if most is not None and len(lines) > most:
            more = f"... {len(lines) - most} more in --out or --json"
            found.append((result.result_id, more, "", "", "", ""))
    return found


def _row(line: Line, result: Result, made: Reproduction) -> tuple[str, ...]:
    deviation = line.deviation
    if deviation is not None:
        shown = f"{deviation:+.1f} {'points' if line.unit == '%' else '%'}"
    else:
        shown = {True: "as in the paper", False: "not as in the paper", None: ""}[line.holds]
    return (
        result.result_id,
        line.what,
        "-" if line.ours is None else _number(line.ours, line.unit),
        f'"{line.says}"' if line.paper is None else _number(line.paper, line.unit),
        shown,
        explain(line, result, made),
    )


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1f}%"
    digits = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{digits}{'' if unit == 'x' else ' '}{unit}"


def markdown(made: Reproduction) -> str:
    """Return the report."""
    trace = made.scene.trace
    about = (
        f"Trace: {made.scene.source}, {len(trace.names):,} nodes, "
        f"{trace.duration_s / 3600.0:g} h from second {trace.span_s[0]:.0f}, "
        f"{len(trace.pool_changes()):,} events, N_eq {trace.equivalent_nodes():.1f}."
    )
    text = [
        "# The paper's evaluation, replayed",
        "",
        f"{PAPER}, section 5.",
        "",
        about,
        "",
        *(f"**{remark}**\n" for remark in remarks(made)),
    ]
    for result in made.results:
        text += [f"## {result.result_id}", "", f"{result.shows}.", ""]
        if result.missing:
            text += [f"Not available: {result.missing}.", ""]
            continue
        finding = made.findings[result.result_id]
        text += [f"Ours: {result.how}.", ""]
        lines = [_row(line, result, made)[1:] for line in finding.lines]
        text += [*_grid(("", "ours", "paper", "deviation", "why"), lines), ""]
        for table in finding.tables:
            text += [*_grid(table.headers, table.rows), ""]
        for chart in finding.charts:
            if file := made.pictures.get(chart.name):
                text += [f"![{chart.title}]({file})", ""]
    return "\n".join(text)


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
