"""Sets of nodes as integers, one bit per node; bit 0 is the first node of slurm.conf. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

NodeSet = int


def lowest(some: NodeSet, count: int) -> NodeSet:
    """Return the ``count`` lowest nodes of a set, or all of it."""
    rest = some
    for _ in range(count):
        rest &= rest - 1
        if not rest:
            break
    return some ^ rest


def positions(some: NodeSet) -> Iterator[int]:
    """Yield the numbers of the nodes, ascending."""
    while some:
        bit = some & -some
        yield bit.bit_length() - 1
        some ^= bit


def neighbours(some: NodeSet, count: int) -> NodeSet:
    """Choose as Slurm does without a topology: neighbours in the order of slurm.conf.

    Of the shortest row that is long enough; while there is none, all of the longest. At least
    ``count`` nodes have to be in ``some``.
    """
    chosen = 0
    rows = sorted(_rows(some), key=itemgetter(1), reverse=True)
    for n, (row, length) in enumerate(rows):
        if length >= count:
            enough = [other for other in rows[n:] if other[1] >= count]
            return chosen | lowest(min(enough, key=itemgetter(1))[0], count)
        chosen |= row
        count -= length
    return chosen


def _rows(some: NodeSet) -> list[tuple[NodeSet, int]]:
    rows = []
    while some:
        row = some & ~(some + (some & -some))
        rows.append((row, row.bit_count()))
        some ^= row
    return rows
