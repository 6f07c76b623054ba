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
from bftrainer.lab.papers.findings import Chart, ValueLine
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


def remarks(made: Reproduction) -> list[str]:
    """Return what a reader must know before any value."""
    shortened = made.extent.shortened
    found = list(made.scenario.remarks)
    return [*found, f"Shortened (--quick): {shortened}"] if shortened else found


def explain(line: ValueLine, result: Result, made: Reproduction) -> str:
    """Return why a line deviates by more than the tolerance, or is missing; empty if it is not."""
    if line.missing:
        return line.missing
    if not is_far(line, result) and line.holds is not False:
        return ""
    if not made.scenario.is_papers:
        return "another trace"
    return line.why or result.why or "not explained"


@cache
def _full_run(package: str) -> FullRun | None:
    return FullRun.read(package) if package else None


def beside_full(line: ValueLine, result: Result, made: Reproduction) -> str:
    """Say whether a line of a shortened run is representative: as near to the full run's."""
    is_compared = line.ours is not None and verdict_of(line, result) is not None
    if not (made.extent.shortened and made.scenario.is_papers and is_compared):
        return ""
    full = _full_run(made.paper.package)
    value = None if full is None else full.value_of(result, line)
    if value is None:
        return "shortened; no full run to compare with"
    if not is_far(replace(line, paper=value), result):
        return "representative"
    return f"not representative: {_number(value, line.unit)} in full"


def document(made: Reproduction) -> dict[str, Any]:
    """Return the JSON document; the same replays give the same document."""
    return {
        "schema": SCHEMA,
        "paper": made.paper.citation,
        **made.scenario.document,
        "extent": made.extent.name,
        "remarks": remarks(made),
        "results": [_result(result, made) for result in made.results],
    }


def _result(result: Result, made: Reproduction) -> dict[str, Any]:
    about: dict[str, Any] = {"id": result.result_id, "shows": result.shows}
    if result.missing:
        lines = [{"what": one.what, "paper": one.paper, "says": one.says, "unit": one.unit,
                  "verdict": verdict_of(one, result)} for one in missing_lines(result)]  # fmt: skip
        return about | {"status": "not attempted", "why": result.missing, "lines": lines}
    finding = made.findings[result.result_id]
    return about | {
        "status": "computed",
        "how": result.how,
        "inputs": result.inputs,
        "lines": [
            {
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
                "why": explain(line, result, made),
                "quick": beside_full(line, result, made),
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
            about = (result.result_id, result.shows, "", "", "", "not attempted")
            found.append((*about, result.missing))
            continue
        lines = made.findings[result.result_id].lines
        found += [row(line, result, made) for line in lines[:most]]
        if most is not None and len(lines) > most:
            more = f"... {len(lines) - most} more in --out or --json"
            found.append((result.result_id, more, "", "", "", "", ""))
    return found


def row(line: ValueLine, result: Result, made: Reproduction) -> tuple[str, ...]:
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
        _verdict(line, result),
        "; ".join(filter(None, (beside_full(line, result, made), explain(line, result, made)))),
    )


def _verdict(line: ValueLine, result: Result) -> str:
    if line.reading_of:
        return f"a reading of {line.reading_of}"
    verdict, fit = verdict_of(line, result) or "", line.fitted or line.predicted
    return f"{verdict} ({fit})" if fit and verdict in {"fitted", "predicted"} else f"{verdict}"


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.1f}%"
    return f"{quantity(value)}{'' if unit == 'x' else ' '}{unit}"


def _papers(line: ValueLine) -> str:
    """Return the paper's value, or what it says; nothing of what is ours alone."""
    if line.paper is not None:
        return _number(line.paper, line.unit)
    return f'"{line.says}"' if line.says else ""


def markdown(made: Reproduction, pictures: Mapping[str, str]) -> str:
    """Return the report.

    Args:
        made: the reproduction.
        pictures: chart's name -> file name.
    """
    text = [
        "# The paper's evaluation, replayed",
        "",
        f"{made.paper.citation}, {made.paper.section}.",
        "",
        made.scenario.summary,
        "",
        *(f"**{remark}**\n" for remark in remarks(made)),
    ]
    for result in made.results:
        text += [f"## {result.result_id}", "", f"{result.shows}.", ""]
        if result.missing:
            text += [f"Not attempted: {result.missing}.", ""]
            continue
        finding = made.findings[result.result_id]
        text += [f"Ours: {result.how}.", ""]
        lines = [row(line, result, made)[1:] for line in finding.lines]
        text += [*_grid(("", "ours", "paper", "deviation", "verdict", "why"), lines), ""]
        for table in finding.tables:
            text += [*_grid(table.headers, table.rows), ""]
        for chart in finding.charts:
            if file := pictures.get(chart.name):
                text += [f"![{chart.title}]({file})", ""]
    return "\n".join(text)


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def answer(made: Reproduction) -> str:
    """Return how many of the published numbers are as published, in one sentence."""
    counts = Counter(verdict for *_, verdict in judged(made))
    parts = ", ".join(f"{counts[word]:,} {word}" for word in NumberVerdict if counts[word])
    quick = ", shortened (--quick)" if made.extent.shortened else ""
    return f"{counted(counts.total(), 'published number')}{quick}: {parts or 'none is compared'}."


def page_of(made: Reproduction, command: str) -> ReportPage:
    """Return the report as a page, with a picture of each chart.

    Raises:
        TraceError: BFT-4004, matplotlib is not installed.
    """
    assumed = [text for text in made.scenario.remarks if text.startswith(ASSUMED)]
    first = [text for text in remarks(made) if text not in assumed]
    last = [Section(title="What is assumed", items=tuple(assumed))] if assumed else []
    return ReportPage(
        title=f"Repeated: {made.paper.citation}, {made.paper.section}",
        answers=(answer(made),),
        more=(made.scenario.summary, *first),
        sections=(*(_section(result, made) for result in made.results), *last),
        command=command,
    )


def _section(result: Result, made: Reproduction) -> Section:
    title = f"{result.result_id}: {result.shows}"
    if result.missing:
        return Section(title=title, text=(f"Not attempted: {result.missing}.",))
    finding = made.findings[result.result_id]
    lines = tuple(row(line, result, made)[1:] for line in finding.lines)
    return Section(
        title=title,
        text=(f"Ours: {result.how}.",),
        pictures=tuple(map(_picture, finding.charts)),
        tables=(TextTable(headers=HEADERS[1:], rows=lines), *finding.tables),
    )


def _picture(chart: Chart) -> Picture:
    figure = new_canvas((9.0, 4.0), OTHERWISE)
    _draw(figure.subplots(), chart)
    dashed = " Dashed: the paper's." if any(plotted.is_papers for plotted in chart.plotted) else ""
    return Picture(
        drawing=html.picture(figure, chart.title, chart.name),
        title=chart.title,
        caption=f"{chart.y_label} over {chart.x_label}." + ("" if chart.has_bars else dashed),
        key=chart.name,
    )


OTHERWISE = "leave --out out and use --json"
ASSUMED = "Assumed"  # remarks that begin so stand last on a page
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # colour-blind readers can tell them apart
PAPER_COLOURS = ("#56B4E9", "#E69F00", "#999999", "#000000")


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
            at = [i + (k + 0.5) * width - 0.4 for i in range(len(plotted.x))]
            axes.bar(at, plotted.y, width=width, color=colour, label=plotted.label)
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
