"""Findings -> the Markdown report, with pictures where they were drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bftrainer.lab.papers.report import remarks, row
from bftrainer.lab.papers.reproduction import Reproduction


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
        made.scenario.summary(),
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
        lines = [row(line, result, made)[1:] for line in finding.lines]
        text += [*_grid(("", "ours", "paper", "deviation", "why"), lines), ""]
        for table in finding.tables:
            text += [*_grid(table.headers, table.rows), ""]
        for chart in finding.charts:
            if file := pictures.get(chart.name):
                text += [f"![{chart.title}]({file})", ""]
    return "\n".join(text)


def _grid(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headers)} |", f"|{' --- |' * len(headers)}"]
    return lines + [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
