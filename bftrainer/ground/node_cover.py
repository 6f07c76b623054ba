"""The choice of nodes to leave out, so that all others reach each other. Pure.

Used by ``bftrainer.fleet.generations.breakage`` and, without a daemon, by
``trainers.agent.regroup``. Standard library only.
"""

from __future__ import annotations

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
    wanted = sorted({pair for pair in pairs if len(pair) == 2}, key=sorted)
    names = {name for pair in wanted for name in pair}
    listed = dict.fromkeys([*order, *sorted(names)])
    place = {name: number for number, name in enumerate(listed)}
    for most in range(MOST_EXACT + 1):
        found = set(_covers(wanted, most))
        if found:
            return max(found, key=lambda one: sorted(place[name] for name in one))
    out: set[str] = set()
    while wanted:
        counts = {name: sum(name in pair for pair in wanted) for name in names - out}
        worst = max(counts, key=lambda name: (counts[name], place[name]))
        out.add(worst)
        wanted = [pair for pair in wanted if worst not in pair]
    return frozenset(out)


def _covers(pairs: Sequence[frozenset[str]], most: int) -> Iterator[frozenset[str]]:
    """All covers of at most ``most`` nodes that a search from pair to pair finds."""
    if not pairs:
        yield frozenset()
    elif most:
        for name in sorted(pairs[0]):
            rest = [pair for pair in pairs if name not in pair]
            for one in _covers(rest, most - 1):
                yield one | {name}
