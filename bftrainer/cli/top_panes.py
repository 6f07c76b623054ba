"""The panes of ``bftrainer top``: they draw what has changed and nothing else.

A terminal behind a slow line gets few bytes, and does not flicker. Texts of others are escaped by
``shown``, and never read as markup: they come as ``rich.text.Text``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import ClassVar, Final

from rich.cells import cell_len
from rich.console import JustifyMethod
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import DataTable, Static

from bftrainer.cli.status import COLUMNS, SPARED, headers_of
from bftrainer.cli.top_summary import NAMES
from bftrainer.model.colours import colour_of
from bftrainer.model.columns import heading, is_right, shown
from bftrainer.model.gpu_shares import shares_of
from bftrainer.model.timeline import USES, NodeUse, parted

# Letters, so that colours are not needed; capital ones: nodes that are ours.
_LOOKS: Final = {
    NodeUse.TRAINING: ("T", "bold"),
    NodeUse.STARTING: ("S", "#c3ccd4"),
    NodeUse.HELD: ("H", "#c3ccd4"),
    NodeUse.LEAVING: ("L", "#c3ccd4"),
    NodeUse.UNREACHABLE: ("U", "bold #ff5f6d"),
    NodeUse.IDLE: (".", "#8b949e"),
    NodeUse.RESERVE: ("r", "#8b949e"),
    NodeUse.ORDINARY: ("#", "#8b949e"),
    NodeUse.UNAVAILABLE: ("x", "#6e7681"),
    NodeUse.SHARED: ("|", "#6e7681"),  # beside the GPUs of a node, which have a letter each
}
LETTERS: Final = tuple((_LOOKS[use][0], Style.parse(_LOOKS[use][1])) for use in USES)
_CHOSEN: Final = Style(reverse=True)
_HEADERS: Final = dict(zip(NAMES, map(heading, headers_of(NAMES)), strict=True))
_GAP: Final = 2  # cells around a column, as Textual draws it
# As much as it may be soon: a value that grows is to leave the columns as they are.
_LEAST: Final = {
    "state": 9, "nodes": 5, "epoch": 6, "rate": 9, "metric": 9, "done": 6, "left": 6, "reason": 9,
}  # fmt: skip
_MOST: Final = {"id": 64, "name": 24, "reason": 160}  # characters of a cell
_MOST_OF_OTHERS: Final = 32
# Use, as its number in ``USES``; whether it is the chosen trainer's; the trainer, "" if none.
Cell = tuple[int, bool, str]
_NUMBERS: Final[Mapping[str, int]] = {use.value: number for number, use in enumerate(USES)}
_SHARED: Final = _NUMBERS[NodeUse.SHARED]
_BAR: Final[Cell] = (_SHARED, False, "")
_NAMES_OF_USES: Final = [*map(str, USES)]
_NAMES_OF_USES[_SHARED] = "nodes with a letter for each GPU"


def legend(states: Iterable[tuple[int, str]]) -> Text:
    """Return the letters of a map, with the numbers of their nodes, or of GPUs lent one by one."""
    counts, text = Counter[int](), Text()
    for state, n_nodes in Counter(states).items():  # of a large site many are the same
        counts[state[0]] += n_nodes
        for share in parted(state):
            counts[_NUMBERS[share.use]] += share.gpus * n_nodes
    for number, (letter, style) in enumerate(LETTERS):
        if counts[number]:
            if text:
                text.append("  ")
            text.append(letter, style).append(f" {counts[number]} {_NAMES_OF_USES[number]}")
    return text


def cells_of(states: Iterable[tuple[int, str]], chosen_id: str | None) -> list[Cell]:
    """Return a cell for each node; for one that lends GPUs one by one a cell each, between bars.

    Args:
        states: use of each node with its trainer or shares, as in ``TimelineView``.
        chosen_id: the trainer that is shown in detail.
    """
    cells: list[Cell] = []
    is_open = False  # the last node was in parts, and its right bar is to come
    for use, trainer_id in states:
        if use == _SHARED:
            cells += _gpu_cells(trainer_id, chosen_id)
            is_open = True
            continue
        if is_open:
            cells.append(_BAR)
            is_open = False
        cells.append((use, trainer_id == chosen_id, trainer_id))
    if is_open:
        cells.append(_BAR)
    return cells


@lru_cache(maxsize=10_000)
def _gpu_cells(shares_text: str, chosen_id: str | None) -> tuple[Cell, ...]:
    """Return the left bar of a node, and its GPUs."""
    cells = [_BAR]
    for share in shares_of(shares_text):
        cell = _NUMBERS[share.use], share.trainer_id == chosen_id, share.trainer_id
        cells += [cell] * share.gpus
    return tuple(cells)


class NodeMap(Widget):
    """A character for each node or GPU, in the order in which the daemon first saw the nodes."""

    def __init__(self) -> None:
        super().__init__()
        self._cells: Sequence[Cell] = ()

    def show(self, cells: Sequence[Cell]) -> None:
        """Draw these nodes: only those that look another way, if they are as many as before."""
        before, self._cells = self._cells, cells
        if len(before) != len(cells):
            self.refresh(layout=True)
        elif places := [i for i, cell in enumerate(cells) if cell != before[i]]:
            width = max(1, self.size.width)
            self.refresh(*(Region(i % width, i // width, 1, 1) for i in places))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002 - Textual's
        """Return the lines that the nodes take."""
        return max(1, -(-len(self._cells) // max(1, width)))

    def render_line(self, y: int) -> Strip:
        """Return a line."""
        width = self.size.width
        cells = self._cells[y * width : (y + 1) * width]
        return Strip([_segment(*cell) for cell in cells]).apply_style(self.rich_style)


@lru_cache(maxsize=1000)
def style_of(trainer_id: str) -> Style:
    """Return a trainer's colour, as the page has it."""
    return Style.parse(colour_of(trainer_id)) if trainer_id else Style()


def _segment(use: int, is_chosen: bool, trainer_id: str) -> Segment:
    letter, style = LETTERS[use]
    style += style_of(trainer_id)
    if is_chosen:
        style += _CHOSEN
    return Segment(letter, style)


class TrainerTable(DataTable[Text]):
    """A row for each trainer; the cursor stays with its trainer."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row")
        self._rows: dict[str, tuple[str, ...]] = {}
        self._names: tuple[str, ...] = ()  # of the columns that are there
        self._rows_of_all: Mapping[str, Sequence[str]] = {}  # not cut to the pane's width

    def on_mount(self) -> None:
        """Make the columns."""
        self._have(NAMES)

    def _have(self, names: tuple[str, ...]) -> None:
        """Begin anew with these columns."""
        self.clear(columns=True)
        self._rows, self._names = {}, names
        for name in names:
            header = _HEADERS[name]
            self.add_column(_cell(name, header), width=len(header), key=name)

    @property
    def chosen(self) -> str | None:
        """The trainer under the cursor."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def show(self, rows: Mapping[str, Sequence[str]]) -> None:
        """Show these rows in this order; touches nothing that is so already."""
        trainer_id, self._rows_of_all = self.chosen, rows
        whole = {key: tuple(map(_cut, NAMES, row)) for key, row in rows.items()}
        columns = zip(NAMES, _HEADERS.values(), *whole.values(), strict=True)
        widths = {name: max(map(cell_len, texts)) for name, *texts in columns}
        names = fitting(widths, self.size.width)
        if names != self._names:
            self._have(names)
        # Textual's own widths come after a row is drawn, if there is much to do.
        for column in self.ordered_columns:
            column.width = widths[str(column.key.value)]
        stays = [name in names for name in NAMES]
        cut = {key: tuple(itertools.compress(row, stays)) for key, row in whole.items()}
        self._draw(cut)
        if trainer_id is not None and trainer_id in cut and trainer_id != self.chosen:
            self.move_cursor(row=self.get_row_index(trainer_id), scroll=False)

    def _draw(self, rows: dict[str, tuple[str, ...]]) -> None:
        """Bring what is on the screen to these rows, cell by cell."""
        for trainer_id in list(self._rows):
            if trainer_id not in rows:
                self.remove_row(trainer_id)
                del self._rows[trainer_id]
        for trainer_id, row in rows.items():
            row_before = self._rows.get(trainer_id)
            if row_before is None:
                self.add_row(*map(_cell, self._names, row), key=trainer_id)
            elif row_before != row:
                for name, text_before, text in zip(self._names, row_before, row, strict=True):
                    if text_before != text:
                        self.update_cell(trainer_id, name, _cell(name, text), update_width=True)
            self._rows[trainer_id] = row
        if list(rows) != list(self._rows):
            self._rows = rows
            places = {trainer_id: place for place, trainer_id in enumerate(rows)}
            self.sort("id", key=lambda cell: places[cell.plain])

    def on_resize(self) -> None:
        """Show as many columns as there is room for now."""
        self.show(self._rows_of_all)


def fitting(widths: Mapping[str, int], width: int) -> tuple[str, ...]:
    """Return the columns that a pane has room for.

    Of a reason the beginning is enough, which has the code: the pane below tells it in full.

    Args:
        widths: cells of each column, in their order.
        width: cells of the pane; 0: not known yet.
    """
    cells = {name: max(cells, _LEAST.get(name, 0)) for name, cells in widths.items()}
    cells["reason"] = _LEAST["reason"]
    for name in SPARED:
        if width and sum(cells.values()) + _GAP * len(cells) > width:
            cells.pop(name, None)
    return tuple(cells)


def _cut(name: str, text: str) -> str:
    n_most, text = _MOST.get(name, _MOST_OF_OTHERS), shown(text)
    return text if len(text) <= n_most else f"{text[: n_most - 1]}…"


def _cell(name: str, text: str) -> Text:
    style = style_of(text) if name == "id" else ""
    justify: JustifyMethod = "right" if is_right(COLUMNS[name].header) else "left"
    return Text(text, style, justify=justify, no_wrap=True)


class Dialog(ModalScreen[bool]):
    """A question, or a text, in front of the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "dismiss(True)", "Yes"),
        ("n,q,question_mark,escape,ctrl+c", "dismiss(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Make the box."""
        yield Static(Text(self._text), id="box")
