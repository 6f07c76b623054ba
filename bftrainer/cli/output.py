"""Output of the verbs as JSON or columns.

Columns and sentences are laid out for the width of a terminal; in a pipe they are plain.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO, TypeVar

import click

from bftrainer.api.documents import document
from bftrainer.cli.pages import with_commands
from bftrainer.model.columns import columns, shown

Answer = TypeVar("Answer")
AS_YAML = "bftrainer.as_yaml"  # in the meta data of a verb's context
USUAL_WIDTH, LEAST_WIDTH = 80, 20  # cells of a terminal's line


def print_lines(*lines: str, indent: int = 2, err: bool = False) -> None:
    """Print lines for people; on a terminal they break at spaces, and nowhere else.

    Args:
        lines: what others have written into them is escaped.
        indent: spaces before the further lines of each on a terminal.
        err: whether to print to standard error.
    """
    is_drawn = is_terminal(sys.stderr if err else sys.stdout)
    for line in lines:
        text = legible(line)
        if is_drawn:
            from bftrainer.cli.tables import wrapped  # noqa: PLC0415 - pipes need none

            text = "\n".join(wrapped(text, terminal_width(), indent=indent))
        click.echo(text, err=err)


def print_as_it_is(*lines: str) -> None:
    """Print lines for programs, or to be copied: they are escaped and else left alone."""
    for line in lines:
        click.echo(shown(line))


def legible(text: str) -> str:
    """Return a text as people get it: safe for a terminal, pages by the commands that open them."""
    return shown(with_commands(text))


def print_json(document: dict[str, Any], *, is_compact: bool = False) -> None:
    """Write one document to standard output, as YAML where the verb was asked for that."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get(AS_YAML):
        from bftrainer.cli.yaml_text import yaml_text  # noqa: PLC0415 - most want JSON

        start = "---\n" if is_compact else ""  # one of a row of documents
        text = f"{start}{yaml_text(document)}".removesuffix("\n")
    elif is_compact:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    else:
        text = json.dumps(document, indent=2, allow_nan=False)
    click.echo(text)


def answer(
    found: Answer,
    name: str,
    say: Callable[[Answer], object],
    *,
    as_json: bool,
    is_compact: bool = False,
) -> None:
    """Print a view: as the document of this name, or what ``say`` prints of it."""
    if as_json:
        print_json(document(name, found), is_compact=is_compact)
    else:
        say(found)


def print_pairs(pairs: Iterable[tuple[str, object]], width: int) -> None:
    """Print names and values in two columns."""
    for name, value in pairs:
        print_lines(f"{shown(name):<{width}} {value}", indent=width + 1)


def print_csv(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows as CSV; no text reaches a terminal as a command, nor a table as a formula."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (headers, *rows):
        writer.writerow(list(map(_harmless, row)))


def _harmless(value: object) -> object:
    if not isinstance(value, str):
        return value
    text = shown(value)
    if value.startswith(("=", "+", "-", "@")):
        return f"'{text}"
    return text


def duration(seconds: float | None) -> str:
    """Return seconds as people write them: 5s, 3m10s, 2h05m, 4d03h."""
    if seconds is None:
        return "-"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def clock(at_s: float | None) -> str:
    """Return a time stamp in local time."""
    return "-" if at_s is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def is_terminal(stream: TextIO | None = None) -> bool:
    """Return whether a stream, else standard output, is a terminal that can draw."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM", "dumb") != "dumb"


def terminal_width() -> int:
    """Return the cells of a line of the terminal."""
    return max(LEAST_WIDTH, shutil.get_terminal_size((USUAL_WIDTH, 24)).columns)


def print_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    optional: Sequence[str] = (),
    elsewhere: str = "",
) -> None:
    """Print rows: a table that fits the terminal, plain columns elsewhere.

    Args:
        headers: one that starts with > aligns right.
        rows: cells, not escaped yet.
        optional: headers of what a narrow terminal leaves out, the first of them first.
        elsewhere: the command that shows what is left out.
    """
    if not rows:
        return
    rows = [tuple(map(with_commands, row)) for row in rows]
    if not is_terminal():
        click.echo(columns(headers, rows))
        return
    from rich.console import Console  # noqa: PLC0415 - takes 0.1 s

    from bftrainer.cli.tables import lines_of  # noqa: PLC0415

    console = Console()
    parts = lines_of(headers, rows, terminal_width(), optional=optional, elsewhere=elsewhere)
    for part, console.width in parts:  # wider than the terminal where a word is
        console.print(part, crop=False, highlight=False)
