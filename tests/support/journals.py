"""Journals that begin with a test, as fixtures, and what is written into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bftrainer.journal.journal import Journal

NODES = tuple(f"n{number}" for number in range(500))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A payload of which only the turn changes."""

    turn: int
    nodes: tuple[str, ...] = NODES


def journal_at(now_s: float, *, begins: bool = False) -> Any:
    """Return a fixture: each test's own journal, whose clock stands still.

    With ``begins`` a daemon has begun to write it.
    """

    @pytest.fixture
    def journal(tmp_path: Path) -> Iterator[Journal]:
        with Journal.open(tmp_path / "journal.db", clock=lambda: now_s) as opened:
            if begins:
                opened.begin_incarnation()
            yield opened

    return journal
