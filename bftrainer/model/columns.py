"""Tables as plain text in aligned columns, for pipes and files. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from bftrainer.elastic.fields import in_one_line


def columns(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows in aligned plain columns; a header that starts with > aligns right."""
    names = [shown(name.removeprefix(">")) for name in headers]
    cells = [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    lines = []
    for row in (names, *cells):
        parts = [
            cell.rjust(width) if header.startswith(">") else cell.ljust(width)
            for header, cell, width in zip(headers, row, widths, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def shown(text: str) -> str:
    """Return the text of others, safe for a terminal: no control sequences, the rest escaped.

    Tabs are as many spaces as they take on a terminal.
    """
    return in_one_line(text.expandtabs())
