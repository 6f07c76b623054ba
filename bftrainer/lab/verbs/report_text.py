"""A report of the lab on a terminal, or in a pipe: the same words as on its page."""

from __future__ import annotations

import sys

from bftrainer.cli.output import print_lines, print_table
from bftrainer.lab.report_page import ReportPage, Section

INDENT = "  "


def print_report(report: ReportPage) -> None:
    """Print a report: its answer first, as on its page; lines stand for pictures."""
    print_lines(*report.answers)
    print_lines(*report.more)
    print_lines(*(f"Warning: {warning}" for warning in report.warnings))
    for section in report.sections:
        _print_section(section)


def _print_section(section: Section) -> None:
    drawing = tuple(filter(_can_be_printed, section.drawn))
    if not (section.title or section.text or drawing or section.tables or section.items):
        return  # it has pictures alone
    print_lines("")
    if section.title:
        print_lines(section.title)
    print_lines(*section.text, *drawing)
    for table in section.tables:
        if section.text or drawing:
            print_lines("")
        print_table(table.headers, table.rows)
    if section.code:
        print_lines("", *(f"{INDENT}{line}" for line in section.code.splitlines()))
    if section.items and section.tables:
        print_lines("")
    if len(section.items) == 1:
        print_lines(*section.items)
    else:
        print_lines(*(f"{INDENT}{item}" for item in section.items), indent=2 * len(INDENT))


def _can_be_printed(line: str) -> bool:
    """Return whether the characters of a drawing are those of the terminal."""
    try:
        line.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
