"""Tables for people at a terminal, in the width that it has.

Nothing is cut. What does not fit in one line per row is laid out otherwise, in this order: the last
column wraps at spaces; long cells get lines of their own below their row; columns that the caller
calls optional are left out, and named below; the rest is printed in blocks, each of which begins
with the first column. Where even that is too wide, each cell gets a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bftrainer.model.columns import cell_width, heading, is_right, shown

GAP = 2  # cells between columns
LONG = 24  # cells from which on a column of text may leave its row
LEAST_WRAPPED = 36  # cells that a wrapped column is to have
INDENT = 4  # of the lines below a row
# A command in quotes stays on one line, so that it can be copied.
_WORD = re.compile(r"(\s*)((?<!\S)'[a-z][^']{0,60}'\S*|\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where the columns of a table go, by their numbers."""

    widths: tuple[int, ...]  # cells of each column
    blocks: tuple[tuple[int, ...], ...]  # columns that stand beside each other; empty: lines
    below: tuple[int, ...] = ()  # on lines of their own below the row
    left_out: tuple[int, ...] = ()


def layout(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    optional: Sequence[str] = (),
) -> Layout:
    """Return where the columns of a table go.

    Args:
        headers: one that starts with > aligns right.
        rows: cells, escaped.
        width: cells of the terminal.
        optional: headers of what is left out first, the first of them first.
    """
    names = list(map(heading, headers))
    places = range(len(names))
    widths = [max(map(cell_width, texts)) for texts in zip(names, *rows, strict=True)]
    stays = list(places)
    if _total(widths, stays) <= width:
        return Layout(widths=tuple(widths), blocks=(tuple(stays),))
    longs = [i for i in places[1:] if widths[i] > LONG and not is_right(headers[i])]
    last = places[-1]
    room = width - _total(widths, stays[:-1]) - GAP
    if last in longs and room >= max(LEAST_WRAPPED, _longest_word(last, names, rows)):
        return Layout(widths=(*widths[:-1], room), blocks=(tuple(stays),))
    below = list[int]()
    for place in sorted(longs, key=lambda i: -widths[i]):
        if _total(widths, stays) > width:
            stays.remove(place)
            below.append(place)
    left_out = list[int]()
    for name in optional:
        if name not in names:
            continue
        place = names.index(name)
        if _total(widths, stays) > width and place in stays:
            stays.remove(place)
            left_out.append(place)
    first, *columns = stays
    most_first = width - max((widths[i] + GAP for i in columns), default=0)
    widths[first] = min(widths[first], max(most_first, _longest_word(first, names, rows)))
    if widths[first] > most_first:
        return Layout(widths=tuple(widths), blocks=(), below=tuple(places))
    return Layout(
        widths=tuple(widths),
        blocks=tuple(_blocks(widths, stays, width)),
        below=tuple(sorted(below)),
        left_out=tuple(sorted(left_out)),
    )


def _total(widths: Sequence[int], places: Sequence[int]) -> int:
    return sum(widths[i] for i in places) + GAP * (len(places) - 1)


def _longest_word(place: int, names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    text = " ".join((names[place], *(row[place] for row in rows)))
    return max(map(cell_width, text.split()), default=0)


def _blocks(widths: Sequence[int], stays: Sequence[int], width: int) -> Iterator[tuple[int, ...]]:
    """Yield the columns that stand beside each other; each block begins with the first column."""
    first, *columns = stays
    block = [first]
    for place in columns:
        if len(block) > 1 and _total(widths, [*block, place]) > width:
            yield tuple(block)
            block = [first]
        block.append(place)
    yield tuple(block)


def wrapped(text: str, width: int, *, first: int = 0, indent: int = 0) -> list[str]:
    """Return an escaped text in lines that break at spaces, never in a word or a quoted command.

    Args:
        text: without line breaks.
        width: cells; a word that is longer has a line of its own.
        first: cells that are taken in the first line already; it gets no indent.
        indent: spaces at the beginning of the further lines.
    """
    if first + cell_width(text) <= width:
        return [text]
    lines, line, line_width, is_empty = list[str](), "", first, first <= indent
    for gap, word in _words(text, width - indent):
        size = cell_width(word)
        if not is_empty and line_width + len(gap) + size > width:
            lines.append(line)
            line, line_width = " " * indent + word, indent + size
        else:
            line, line_width = line + gap + word, line_width + len(gap) + size
        is_empty = False
    return [*lines, line]


def _words(text: str, room: int) -> Iterator[tuple[str, str]]:
    """Yield the words, each after the spaces before it; ``room``: cells for one of them."""
    for gap, word in _WORD.findall(text):
        first_part, *parts = [word] if cell_width(word) <= room else word.split()
        yield gap, first_part
        for part in parts:
            yield " ", part


def lines_of(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    *,
    optional: Sequence[str] = (),
    elsewhere: str = "",
    styles: Mapping[str, str] | None = None,
) -> Iterator[tuple[Any, int]]:
    """Yield what rich is to print, each with the width it takes.

    Args:
        headers: one that starts with > aligns right.
        rows: cells, not escaped yet.
        width: cells of the terminal.
        optional: as of ``layout``.
        elsewhere: the command that shows what is left out.
        styles: of cells beside each other, by what is in them, in rich's words.
    """
    from rich.text import Text  # noqa: PLC0415 - takes 0.1 s

    names = list(map(heading, headers))
    cells = [list(map(shown, row)) for row in rows]
    plan = layout(headers, cells, width, optional)
    for number, block in enumerate(plan.blocks):
        if number:
            yield Text(""), width
        below: tuple[int, ...] = ()
        if number == len(plan.blocks) - 1:  # what is below stands there once
            below = plan.below
        yield from _block(headers, cells, plan, (block, below), width, styles or {})
    if not plan.blocks:
        for row in cells:
            for name, cell in zip(names, row, strict=True):
                yield from _line(name, cell, width, 0)
            yield Text(""), width
    if plan.left_out:
        sentence = f"left out at this width: {', '.join(names[i] for i in plan.left_out)}"
        if elsewhere:
            sentence += f"; {elsewhere}"
        yield from _line("", sentence, width, 0)


def _block(
    headers: Sequence[str],
    cells: Sequence[Sequence[str]],
    plan: Layout,
    places: tuple[Sequence[int], Sequence[int]],  # in the row, below it
    width: int,
    styles: Mapping[str, str],
) -> Iterator[tuple[Any, int]]:
    from rich.text import Text  # noqa: PLC0415

    beside, below = places
    names = list(map(heading, headers))
    names_below = [*names[:-1], ""]  # the last column is a reason or the like, which needs no name
    grid_width = max(width, _total(plan.widths, beside))
    grid = _grid(headers, plan, beside)
    if any(names[i] for i in beside):
        grid.add_row(*(Text(names[i], "bold") for i in beside))
    for row in cells:
        grid.add_row(*(Text(row[i], styles.get(row[i], "")) for i in beside))
        filled = [i for i in below if row[i]]
        if filled:
            yield grid, grid_width
            grid = _grid(headers, plan, beside)
        for place in filled:
            yield from _line(names_below[place], row[place], width)
    if grid.row_count:
        yield grid, grid_width


def _grid(headers: Sequence[str], plan: Layout, places: Sequence[int]) -> Any:
    from rich.table import Table  # noqa: PLC0415

    grid = Table.grid(padding=(0, GAP, 0, 0))
    for place in places:
        grid.add_column(
            width=plan.widths[place],
            justify="right" if is_right(headers[place]) else "left",
            overflow="fold",
        )
    return grid


def _line(name: str, cell: str, width: int, indent: int = INDENT) -> Iterator[tuple[Any, int]]:
    """Yield a cell in lines of its own, which are indented below its name."""
    from rich.text import Text  # noqa: PLC0415

    hanging = indent
    if name:
        cell, hanging = f"{name} {cell}", indent + 2
    first_line, *lines = wrapped(cell, width, first=indent, indent=hanging)
    for line in (f"{' ' * indent}{first_line}", *lines):
        text = Text(line, no_wrap=True)
        yield text, max(width, cell_width(text.plain))
