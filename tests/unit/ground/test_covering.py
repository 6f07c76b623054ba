"""Which nodes to leave out so that the others reach each other."""

from __future__ import annotations

import itertools
import random

import pytest

from bftrainer.ground.node_cover import MOST_EXACT, cover


def _pairs(*names: str) -> list[frozenset[str]]:
    """``ab`` is the pair of a and b."""
    return [frozenset(name) for name in names]


@pytest.mark.parametrize(
    ("pairs", "order", "expected"),
    [
        ((), "abc", ""),
        (("ac",), "abc", "c"),
        (("ac",), "cab", "a"),  # the first rank stays
        (("ab", "ac", "ad"), "abcd", "a"),  # one node instead of three, though it is the first
        (("ab", "cd"), "abcd", "bd"),
        (("ab", "bc"), "abc", "b"),
        (("ab", "bc", "ca"), "abc", "bc"),
        (("xy",), "", "y"),
    ],
)
def test_the_fewest_are_left_out_and_the_first_kept(
    pairs: tuple[str, ...], order: str, expected: str
) -> None:
    assert cover(_pairs(*pairs), order) == set(expected)


def test_it_is_a_smallest_cover_in_whatever_order_the_pairs_come() -> None:
    chance = random.Random(3)  # noqa: S311 - of a test
    for _ in range(300):
        names = "abcdefg"[: chance.randint(2, 7)]
        pairs = [frozenset(chance.sample(names, 2)) for _ in range(chance.randint(1, 9))]
        order = "".join(chance.sample(names, len(names)))
        found = cover(pairs, order)
        assert all(pair & found for pair in pairs)
        covers = [
            set(some)
            for size in range(len(names))
            for some in itertools.combinations(names, size)
            if all(pair & set(some) for pair in pairs)
        ]
        fewest = min(map(len, covers))
        least = [sorted(map(order.index, one)) for one in covers if len(one) == fewest]
        assert sorted(map(order.index, found)) == max(least)
        assert cover(chance.sample(pairs, len(pairs)), order) == found


def test_a_partition_of_many_leaves_out_the_smaller_side() -> None:
    few, many = [f"a{n}" for n in range(MOST_EXACT + 4)], [f"b{n}" for n in range(200)]
    pairs = [frozenset((a, b)) for a in few for b in many]
    assert cover(pairs, few) == set(few)
