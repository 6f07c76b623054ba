"""Tables as plain text in aligned columns, for pipes and files. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bftrainer.ground.fields import in_one_line

LEVELS = "▁▂▃▄▅▆▇█"  # bars of curves as text


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """Texts in rows; a header that starts with > aligns right, and without words there is none."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def level_line(parts: Sequence[float]) -> str:
    """Return a bar for each number from 0 to 1."""
    return "".join(LEVELS[min(len(LEVELS) - 1, int(part * len(LEVELS)))] for part in parts)


def columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in aligned plain columns; a header that starts with > aligns right."""
    names = list(map(heading, headers))
    cells = [list(map(shown, row)) for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(names, *cells, strict=True)]
    if any(names):
        cells.insert(0, names)
    lines = []
    for row in cells:
        parts = [
            _filled(cell, width, is_right=is_right(header))
            for header, cell, width in zip(headers, row, widths, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def heading(header: str) -> str:
    """Return a header as it is shown."""
    return shown(header.removeprefix(">"))


def counted(number: float, noun: str, plural: str = "") -> str:
    """Return a number with its noun: 1 node, 2 nodes, 3 entries (``plural``)."""
    if number != 1:
        noun = plural or f"{noun}s"
    return f"{number} {noun}"


def is_right(header: str) -> bool:
    """Return whether a column aligns right."""
    return header.startswith(">")


def cell_width(text: str) -> int:
    """Return the cells that a text takes on a terminal: two for wide characters, none for marks."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - few texts need it

    return cell_len(text)


def _filled(cell: str, width: int, *, is_right: bool) -> str:
    spaces = " " * (width - cell_width(cell))
    if is_right:
        return f"{spaces}{cell}"
    return f"{cell}{spaces}"


def shown(text: str) -> str:
    """Return the text of others, safe for a terminal: no control sequences, the rest escaped.

    Tabs are as many spaces as they take on a terminal.
    """
    return in_one_line(text.expandtabs())
