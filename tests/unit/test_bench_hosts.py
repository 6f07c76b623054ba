"""What bench_hosts reads from the updates of a trainer."""

from __future__ import annotations

import pytest
from _bench.host_bed import N_NODES, longest_gap, whole_since

from tests.support.hosts.own_daemon import Update

FULL, LESS = N_NODES, N_NODES - 1


def found(*at: tuple[float, int]) -> list[Update]:
    return [Update(at_s=at_s, step=1, generation=1, size=size) for at_s, size in at]


@pytest.mark.parametrize(
    ("updates", "since_s"),
    [
        (found((8, FULL), (9, FULL)), None),  # none after the end
        (found((9, LESS), (11, FULL), (12, FULL)), 11),
        (found((11, FULL), (12, LESS), (13, FULL), (14, FULL)), 13),  # it was not to stay
        (found((11, FULL), (12, LESS)), None),
        (found((11, FULL), (12, FULL), (20, FULL), (21, FULL)), 20),  # it stopped
    ],
)
def test_full_size_counts_from_when_it_is_to_stay(
    updates: list[Update], since_s: float | None
) -> None:
    assert whole_since(updates, ended_s=10.0) == since_s


@pytest.mark.parametrize(
    ("updates", "gap_s"),
    [
        (found((1, FULL), (5, FULL), (6, FULL), (8, LESS), (9, FULL)), 2),  # 4 s before it
        (found((6, FULL), (6.5, LESS)), 3.5),  # goes on
        (found((2, FULL), (7, LESS), (9, LESS), (13, LESS)), 5),  # began before, ends in it
    ],
)
def test_the_longest_gap_is_of_the_trouble(updates: list[Update], gap_s: float) -> None:
    assert longest_gap(updates, began_s=5.5, ended_s=10.0) == gap_s
