"""Output of the verbs as JSON or columns.

Columns become a rich table on a terminal; in a pipe they are plain and never truncated.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import click

from bftrainer.api.documents import document
from bftrainer.model.columns import columns, shown

Answer = TypeVar("Answer")


def print_lines(*lines: str, err: bool = False) -> None:
    """Print lines for people; what others have written into them is escaped."""
    for line in lines:
        click.echo(shown(line), err=err)


def print_json(document: dict[str, Any], *, is_compact: bool = False) -> None:
    """Write one document to standard output."""
    if is_compact:
        click.echo(json.dumps(document, separators=(",", ":"), allow_nan=False))
    else:
        click.echo(json.dumps(document, indent=2, allow_nan=False))


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
        print_lines(f"{shown(name):<{width}} {value}")


def print_csv(headers: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows as CSV; no text reaches a terminal as a command, nor a table as a formula."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for row in (headers, *rows):
        writer.writerow([_harmless(value) for value in row])


def _harmless(value: object) -> object:
    if not isinstance(value, str):
        return value
    return f"'{shown(value)}" if value.startswith(("=", "+", "-", "@")) else shown(value)


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


def is_terminal() -> bool:
    """Return whether standard output is a terminal that can draw."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows: a table that fits the terminal, plain columns elsewhere."""
    if not rows:
        return
    if not is_terminal():
        click.echo(columns(headers, rows))
        return
    from rich.console import Console  # noqa: PLC0415 - takes 0.1 s

    Console().print(table(headers, rows))


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """Return the rows as a rich table."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    result = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in headers:
        result.add_column(
            Text(shown(name.removeprefix(">"))), justify="right" if name.startswith(">") else "left"
        )
    for row in rows:
        result.add_row(*(Text(shown(cell)) for cell in row))  # Text: names are not markup
    return result
