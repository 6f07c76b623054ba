"""The choice of nodes to leave out, so that all others reach each other. Pure.

Used by ``bftrainer.fleet.generations.breakage`` and, without a daemon, by
``trainers.agent.regroup``. Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

MOST_EXACT = 6  # nodes left out; for more the search tree, of 2**n leaves, is not worth its time


def cover(pairs: Iterable[frozenset[str]], order: Sequence[str]) -> frozenset[str]:
    """Return a smallest set with a node of every pair (a minimum vertex cover).

    Of several, the one that leaves the first nodes of ``order`` in, as far as possible. For more
    than ``MOST_EXACT`` nodes: the node of most pairs first, until none is left.

    Args:
        pairs: of two nodes each.
        order: the nodes to keep first; others come after these, by name.
    """
    open_pairs = sorted({pair for pair in pairs if len(pair) == 2}, key=sorted)
    names = set[str]().union(*open_pairs)
    by_preference = dict.fromkeys([*order, *sorted(names)])
    place = {name: number for number, name in enumerate(by_preference)}
    for size in range(MOST_EXACT + 1):
        covers = set(_covers(open_pairs, size))
        if covers:
            return max(covers, key=lambda cover: sorted(place[name] for name in cover))
    left_out: set[str] = set()
    while open_pairs:
        counts = Counter(name for pair in open_pairs for name in pair)
        worst = max(counts, key=lambda name: (counts[name], place[name]))
        left_out.add(worst)
        open_pairs = [pair for pair in open_pairs if worst not in pair]
    return frozenset(left_out)


def _covers(pairs: Sequence[frozenset[str]], most: int) -> Iterator[frozenset[str]]:
    """All covers of at most ``most`` nodes that a search from pair to pair finds."""
    if not pairs:
        yield frozenset()
    elif most:
        for name in sorted(pairs[0]):
            without_name = [pair for pair in pairs if name not in pair]
            for cover_of_others in _covers(without_name, most - 1):
                yield cover_of_others | {name}
