"""Tables and sentences at a terminal of any width: nothing is cut, nothing is wider than it."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console

from bftrainer.cli import output, tables
from bftrainer.cli.status import COLUMNS, USUAL, headers_of
from bftrainer.model.columns import columns, counted
from tests.support.terminals import Terminal

WIDTHS = [*range(40, 201, 8), 79, 80, 81]
PATH = "/home/someone/.bftrainer/cluster/logs/t2/worker-0.log"
REASON = f"BFT-1423: The script ended without training. See {PATH} for 'bftrainer logs t2' too."
LONG_NAME = "a-name-that-somebody-has-made-of-all-the-parameters-of-a-run-lr0.001-wd0.1-bs256"
WIDE_NAME = "学習の実験・第三回🚀é"  # wide letters, an emoji, a mark that takes no cell
NAMES = ["mnist", LONG_NAME, WIDE_NAME]
SPARED = ("LIMITS", "PLAN", "STEP", "USER", "AGE", "EPOCH", "METRIC", "SAMPLES/S", "LEFT")


def row(number: int, name: str, reason: str) -> tuple[str, ...]:
    cells = dict.fromkeys(COLUMNS, "-") | {
        "id": f"t{number}", "name": name, "user": "researcher", "state": "running",
        "nodes": "12", "plan": "16", "limits": "1:64", "epoch": "120", "step": "1203456",
        "rate": "2.82e+04", "metric": "0.01234", "left": "2h05m", "age": "4d03h",
        "reason": reason,
    }  # fmt: skip
    return tuple(cells[name] for name in USUAL)


ROWS = [row(1, "mnist", ""), row(2, LONG_NAME, REASON), row(3, WIDE_NAME, "It waits.")]


def drawn(
    headers: Sequence[str], rows: Sequence[Sequence[str]], width: int, **more: object
) -> list[str]:
    """Return the lines of a table as a terminal of this width gets them."""
    console = Console(file=io.StringIO(), force_terminal=False, width=width)
    for part, console.width in tables.lines_of(headers, rows, width, **more):  # type: ignore[arg-type]
        console.print(part, crop=False, highlight=False)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_table_of_trainers_cuts_nothing_at_any_width(width: int) -> None:
    lines = drawn(
        headers_of(USUAL), ROWS, width, optional=SPARED, elsewhere="'status ID' shows all"
    )
    text = "\n".join(lines)
    for whole in (PATH, "BFT-1423:", *NAMES, "t1", "t2", "t3", "It waits."):
        assert whole in text, whole
    assert " ".join(REASON.split()) in " ".join(text.split()), "all words of it, in their order"
    assert "…" not in text
    assert "..." not in text
    wider = [line for line in lines if cell_len(line) > width]
    assert all(line.strip(" ;") in {PATH, LONG_NAME} for line in wider), wider


@pytest.mark.parametrize(
    ("width", "left_out"),
    [
        (200, ()),
        # 83 cells and 13 gaps of 2; without LIMITS 101, PLAN 95, STEP 86, USER 74
        (80, ("USER", "PLAN", "LIMITS", "STEP")),
    ],
)
def test_columns_go_by_width_and_are_named(width: int, left_out: tuple[str, ...]) -> None:
    lines = drawn(headers_of(USUAL), ROWS[:1], width, optional=SPARED, elsewhere="see ID")
    text = " ".join(lines)
    if left_out:
        assert f"left out at this width: {', '.join(left_out)}; see ID" in text
        assert lines[0].split() == ["ID", "NAME", "STATE", "NODES", "EPOCH", "SAMPLES/S", "METRIC",
                                    "LEFT", "AGE", "REASON"]  # fmt: skip
    else:
        assert "left out" not in text
        assert lines[0].split()[:2] == ["ID", "NAME"]
        assert lines[1].split()[:3] == ["t1", "mnist", "researcher"]


def test_a_reason_has_lines_of_its_own_below_its_row() -> None:
    rows = [("t1", "no", "BFT-1423: It ended. See the log for more of it."), ("t2", "yes", "")]
    assert drawn(("ID", "OK", "REASON"), rows, 30) == [
        "ID  OK",
        "t1  no",
        "    BFT-1423: It ended. See",
        "    the log for more of it.",
        "t2  yes",
    ]  # fmt: skip


def test_what_fits_beside_wraps_in_its_column() -> None:
    reason = "It waits for nodes, and nobody knows of any."
    lines = drawn(("ID", "REASON"), [("t1", reason)], 42)
    assert lines == ["ID  REASON", "t1  It waits for nodes, and nobody knows", "    of any."]


def test_many_figures_stand_in_blocks_that_begin_with_the_first_column() -> None:
    headers = ("POLICY", *[f">M{i:04}" for i in range(8)])
    lines = drawn(headers, [("milp", *[f"{i}.5" for i in range(8)])], 40)
    assert lines == [
        "POLICY  M0000  M0001  M0002  M0003",
        "milp      0.5    1.5    2.5    3.5",
        "",
        "POLICY  M0004  M0005  M0006  M0007",
        "milp      4.5    5.5    6.5    7.5",
    ]


def test_a_first_column_of_one_long_word_gives_lines_instead_of_a_table() -> None:
    lines = drawn(("FILE", ">BYTES"), [(PATH, "12")], 40)
    assert lines == ["FILE", f"  {PATH}", "BYTES 12", ""]


@pytest.mark.parametrize("width", WIDTHS)
def test_sentences_break_at_spaces_and_keep_commands_whole(width: int) -> None:
    text = f"{REASON} Then run 'bftrainer status ID' or {PATH}, it's quick."
    lines = tables.wrapped(text, width, indent=2)
    assert " ".join(text.split()) == " ".join(" ".join(lines).split())
    assert any("'bftrainer status ID'" in line for line in lines), "a command stays on one line"
    for line in lines:
        assert cell_len(line) <= width or line.strip(" ,") == PATH


def test_names_and_values_hang_below_their_value() -> None:
    text = "state         failed: It ended without training"
    assert tables.wrapped(text, 30, indent=14) == [
        "state         failed: It ended",
        "              without training",
    ]


def test_plain_columns_align_by_cells() -> None:
    """In a pipe: two cells for a wide letter, none for a mark."""
    plain = columns(("NAME", ">N"), [("学習", "1"), ("é", "22"), ("abcde", "3")])
    assert plain.splitlines() == ["NAME    N", "学習    1", "é      22", "abcde   3"]
    assert len({cell_len(line) for line in plain.splitlines()}) == 1


def printed(rows: Sequence[Sequence[str]], monkeypatch: pytest.MonkeyPatch, **env: str) -> str:
    """Return what a terminal of 60 cells gets of a table."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "60", **env}.items():
        monkeypatch.setenv(name, value)
    output.print_table(("ID", "NAME", "REASON"), rows)
    return stream.getvalue()


def test_no_color_is_heeded_and_a_dumb_terminal_gets_plain_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [("t1", "mnist", REASON)]
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]", printed(rows, monkeypatch, NO_COLOR="1"))
    plain = printed(rows, monkeypatch, TERM="dumb")
    assert "\x1b" not in plain
    assert plain.splitlines()[1] == f"t1  mnist  {REASON}"


def test_pages_are_named_by_the_commands_that_open_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("t1", "a", "See docs/howto/train-pytorch.md, Losses.")]
    assert "See 'bftrainer help train-pytorch', Losses." in printed(rows, monkeypatch, TERM="dumb")


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [(0, ("node",), "0 nodes"), (1, ("node",), "1 node"), (2, ("node",), "2 nodes"),
     (1, ("entry", "entries"), "1 entry"), (3, ("entry", "entries"), "3 entries")],
)  # fmt: skip
def test_numbers_agree_with_their_nouns(number: int, nouns: tuple[str, ...], text: str) -> None:
    assert counted(number, *nouns) == text
