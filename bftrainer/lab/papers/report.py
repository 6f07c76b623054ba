"""Findings as a JSON document, a table, the Markdown report and charts.

This module alone decides what is said about a line; ``verdicts`` judges it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bftrainer.batch.traces.text import unreadable
from bftrainer.lab import html
from bftrainer.lab.papers.findings import Chart, Finding, ValueLine
from bftrainer.lab.papers.paper import Reproduction, Result
from bftrainer.lab.papers.verdicts import (
    FullRun,
    NumberVerdict,
    is_far,
    judged,
    missing_lines,
    tolerance_of,
    verdict_of,
)
from bftrainer.lab.report_page import Picture, ReportPage, Section
from bftrainer.model.columns import TextTable, counted
from bftrainer.model.quantities import quantity
from bftrainer.study.plots import new_canvas

SCHEMA = "bftrainer/reproduction/2"
HEADERS = ("RESULT", "WHAT", ">OURS", "PAPER", "DEVIATION", "VERDICT", "WHY")
OTHERWISE = "leave --out out and use --json"
ASSUMED = "Assumed"  # remarks that begin so stand last on a page
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # colour-blind readers can tell them apart
PAPER_COLOURS = ("#56B4E9", "#E69F00", "#999999", "#000000")
HOLDS = {True: "as in the paper", False: "not as in the paper", None: ""}


def remarks(reproduction: Reproduction) -> list[str]:
    """Return what a reader must know before any value."""
    texts = list(reproduction.scenario.remarks)
    if reproduction.extent.shortened:
        texts.append(f"Shortened (--quick): {reproduction.extent.shortened}")
    return texts


def explain(line: ValueLine, result: Result, reproduction: Reproduction) -> str:
    """Return why a line deviates by more than the tolerance, or is missing; empty if it is not."""
    if line.missing:
        return line.missing
    if not is_far(line, result) and line.holds is not False:
        return ""
    if not reproduction.scenario.is_papers:
        return "another trace"
    return line.why or result.why or "not explained"


@cache
def _full_run(package: str) -> FullRun | None:
    if not package:
        return None
    return FullRun.read(package)


def beside_full(line: ValueLine, result: Result, reproduction: Reproduction) -> str:
    """Say whether a line of a shortened run is representative: as near to the full run's."""
    is_compared = line.ours is not None and verdict_of(line, result) is not None
    if not (reproduction.extent.shortened and reproduction.scenario.is_papers and is_compared):
        return ""
    full_run = _full_run(reproduction.paper.package)
    value = full_run.value_of(result, line) if full_run else None
    if value is None:
        return "shortened; no full run to compare with"
    if not is_far(replace(line, paper=value), result):
        return "representative"
    return f"not representative: {_number(value, line.unit)} in full"


def document(reproduction: Reproduction) -> dict[str, Any]:
    """Return the JSON document; the same replays give the same document."""
    return {
        "schema": SCHEMA,
        "paper": reproduction.paper.citation,
        **reproduction.scenario.document,
        "extent": reproduction.extent.name,
        "remarks": remarks(reproduction),
        "results": [_result(result, reproduction) for result in reproduction.results],
    }


def _result(result: Result, reproduction: Reproduction) -> dict[str, Any]:
    about: dict[str, Any] = {"id": result.result_id, "shows": result.shows}
    if result.missing:
        lines = [_missing_line(line, result) for line in missing_lines(result)]
        return about | {"status": "not attempted", "why": result.missing, "lines": lines}
    finding = reproduction.findings[result.result_id]
    return about | {
        "status": "computed",
        "how": result.how,
        "inputs": result.inputs,
        "lines": [_line(line, result, reproduction) for line in finding.lines],
        "figures": list(map(_figure, finding.charts)),
    }


def _missing_line(line: ValueLine, result: Result) -> dict[str, Any]:
    return {
        "what": line.what,
        "paper": line.paper,
        "says": line.says,
        "unit": line.unit,
        "verdict": verdict_of(line, result),
    }


def _line(line: ValueLine, result: Result, reproduction: Reproduction) -> dict[str, Any]:
    return {
        "what": line.what,
        "ours": line.ours,
        "paper": line.paper,
        "unit": line.unit,
        "tolerance": tolerance_of(line, result),
        "deviation": line.deviation,
        "says": line.says,
        "holds": line.holds,
        "verdict": verdict_of(line, result),
        "reading_of": line.reading_of,
        "fit": line.fitted or line.predicted,
        "why": explain(line, result, reproduction),
        "quick": beside_full(line, result, reproduction),
    }


def _figure(chart: Chart) -> dict[str, Any]:
    return {
        "name": chart.name,
        "title": chart.title,
        "x": chart.x_label,
        "y": chart.y_label,
        "data": [
            {"label": plotted.label, "x": list(plotted.x), "y": list(plotted.y)}
            for plotted in chart.plotted
        ],
    }


def rows(reproduction: Reproduction, *, most: int | None = None) -> list[tuple[str, ...]]:
    """Return the rows of the table, at most ``most`` per result."""
    table: list[tuple[str, ...]] = []
    for result in reproduction.results:
        if result.missing:
            about = (result.result_id, result.shows, "", "", "", "not attempted")
            table.append((*about, result.missing))
            continue
        lines = reproduction.findings[result.result_id].lines
        table += [row(line, result, reproduction) for line in lines[:most]]
        if most is not None and len(lines) > most:
            hint = f"... {len(lines) - most} more in --out or --json"
            table.append((result.result_id, hint, "", "", "", "", ""))
    return table


def row(line: ValueLine, result: Result, reproduction: Reproduction) -> tuple[str, ...]:
    """Return one row of the table."""
    if line.deviation is None:
        deviation = HOLDS[line.holds]
    else:
        deviation = f"{line.deviation:+.1f} {'points' if line.deviates_in_points else '%'}"
    reasons = (beside_full(line, result, reproduction), explain(line, result, reproduction))
    return (
        result.result_id,
        line.what,
        "-" if line.ours is None else _number(line.ours, line.unit),
        _papers(line),
        deviation,
        _verdict(line, result),
        "; ".join(filter(None, reasons)),
    )


def _cells(finding: Finding, result: Result, reproduction: Reproduction) -> list[tuple[str, ...]]:
    """Return the rows of a result without its name."""
    cells = []
    for line in finding.lines:
        _, *parts = row(line, result, reproduction)
        cells.append(tuple(parts))
    return cells


def _verdict(line: ValueLine, result: Result) -> str:
    if line.reading_of:
        return f"a reading of {line.reading_of}"
    verdict, fit = verdict_of(line, result) or "", line.fitted or line.predicted
    if fit and verdict in {"fitted", "predicted"}:
        return f"{verdict} ({fit})"
    return f"{verdict}"


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1f}%"
    if unit == "x":
        return f"{quantity(value)}x"
    return f"{quantity(value)} {unit}"


def _papers(line: ValueLine) -> str:
    """Return the paper's value, or what it says; nothing of what is ours alone."""
    if line.paper is not None:
        return _number(line.paper, line.unit)
    if line.says:
        return f'"{line.says}"'
    return ""


def markdown(reproduction: Reproduction, pictures: Mapping[str, str]) -> str:
    """Return the report.

    Args:
        reproduction: the reproduction.
        pictures: chart's name -> file name.
    """
    text = [
        "# The paper's evaluation, replayed",
        "",
        f"{reproduction.paper.citation}, {reproduction.paper.section}.",
        "",
        reproduction.scenario.summary,
        "",
        *(f"**{remark}**\n" for remark in remarks(reproduction)),
    ]
    for result in reproduction.results:
        text += [f"## {result.result_id}", "", f"{result.shows}.", ""]
        if result.missing:
            text += [f"Not attempted: {result.missing}.", ""]
            continue
        finding = reproduction.findings[result.result_id]
        text += [f"Ours: {result.how}.", ""]
        lines = _cells(finding, result, reproduction)
        text += [*_grid(("", "ours", "paper", "deviation", "verdict", "why"), lines), ""]
        for table in finding.tables:
            text += [*_grid(table.headers, table.rows), ""]
        for chart in finding.charts:
            if file := pictures.get(chart.name):
                text += [f"![{chart.title}]({file})", ""]
    return "\n".join(text)


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}"]
    for row in rows:
        cells = [cell.replace("|", "/") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def answer(reproduction: Reproduction) -> str:
    """Return how many of the published numbers are as published, in one sentence."""
    times = Counter(verdict for *_, verdict in judged(reproduction))
    parts = ", ".join(f"{times[word]:,} {word}" for word in NumberVerdict if times[word])
    quick = ", shortened (--quick)" if reproduction.extent.shortened else ""
    return f"{counted(times.total(), 'published number')}{quick}: {parts or 'none is compared'}."


def page_of(reproduction: Reproduction, command: str) -> ReportPage:
    """Return the report as a page, with a picture of each chart.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed.
    """
    assumptions = [text for text in reproduction.scenario.remarks if text.startswith(ASSUMED)]
    warnings = [text for text in remarks(reproduction) if text not in assumptions]
    sections = [_section(result, reproduction) for result in reproduction.results]
    if assumptions:
        sections.append(Section(title="What is assumed", items=tuple(assumptions)))
    return ReportPage(
        title=f"Repeated: {reproduction.paper.citation}, {reproduction.paper.section}",
        answers=(answer(reproduction),),
        more=(reproduction.scenario.summary, *warnings),
        sections=tuple(sections),
        command=command,
    )


def _section(result: Result, reproduction: Reproduction) -> Section:
    title = f"{result.result_id}: {result.shows}"
    if result.missing:
        return Section(title=title, text=(f"Not attempted: {result.missing}.",))
    finding = reproduction.findings[result.result_id]
    lines = tuple(_cells(finding, result, reproduction))
    return Section(
        title=title,
        text=(f"Ours: {result.how}.",),
        pictures=tuple(map(_picture, finding.charts)),
        tables=(TextTable(headers=HEADERS[1:], rows=lines), *finding.tables),
    )


def _picture(chart: Chart) -> Picture:
    figure = new_canvas((9.0, 4.0), OTHERWISE)
    _draw(figure.subplots(), chart)
    caption = f"{chart.y_label} over {chart.x_label}."
    if not chart.has_bars and any(plotted.is_papers for plotted in chart.plotted):
        caption += " Dashed: the paper's."
    return Picture(
        drawing=html.picture(figure, chart.title, chart.name),
        title=chart.title,
        caption=caption,
        key=chart.name,
    )


def draw_all(charts: Iterable[Chart], folder: Path) -> dict[str, str]:
    """Write every chart; return the file names by the charts' names.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed; BFT-4002, no file can be written.
    """
    files = {}
    for chart in charts:
        figure = new_canvas((7.0, 4.0), OTHERWISE)
        _draw(figure.subplots(), chart)
        path = folder / f"{chart.name}.png"
        try:
            # Without a date the same replays give the same file.
            figure.savefig(path, metadata={"Software": None})
        except OSError as problem:
            raise unreadable(path, problem) from problem
        files[chart.name] = path.name
    return files


def _draw(axes: Any, chart: Chart) -> None:
    ours = paper = 0
    width = 0.8 / len(chart.plotted)
    for k, plotted in enumerate(chart.plotted):
        if plotted.is_papers:
            colour, paper = PAPER_COLOURS[paper % len(PAPER_COLOURS)], paper + 1
        else:
            colour, ours = COLOURS[ours % len(COLOURS)], ours + 1
        if chart.has_bars:
            places = [i + (k + 0.5) * width - 0.4 for i in range(len(plotted.x))]
            axes.bar(places, plotted.y, width=width, color=colour, label=plotted.label)
            axes.set_xticks(range(len(plotted.x)), plotted.x, rotation=20)
        else:
            style = "--" if plotted.is_papers else "o-"
            axes.plot(plotted.x, plotted.y, style, color=colour, label=plotted.label, markersize=3)
    if chart.is_log:
        axes.set_yscale("log")
    if len(chart.plotted) > 1:
        axes.legend(fontsize=8)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(alpha=0.3)
