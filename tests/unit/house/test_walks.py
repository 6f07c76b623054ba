"""A reader follows a decision: he seldom comes back to a module, and the snapshot stays."""

from __future__ import annotations

from statistics import median

import pytest
from trace_walks import MOST_MOVES, MOST_RETURNS, decisions

MOST_USUAL = 25  # returns, median; MOST_RETURNS is the limit of any decision


def test_a_decision_seldom_returns_to_a_module_and_keeps_the_snapshot_in_its_room() -> None:
    walks = decisions(every=50)
    assert len(walks) > 50
    assert median([walk.n_returns for walk in walks]) <= MOST_USUAL
    assert max([walk.n_returns for walk in walks]) <= MOST_RETURNS
    assert max([walk.n_moves for walk in walks]) <= MOST_MOVES


@pytest.mark.long
def test_no_frozen_decision_returns_more_often() -> None:
    walks = decisions(every=1)
    assert len(walks) > 2500
    assert max([walk.n_returns for walk in walks]) <= MOST_RETURNS
    assert max([walk.n_moves for walk in walks]) <= MOST_MOVES
