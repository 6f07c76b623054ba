"""Sizes that are all equally good at the price of a node: which of them to take.

Takes per trainer its equally good sizes and how many nodes they have together, returns
one size each: fewest rescales, then earlier trainers get more. Called by
``milp.exact.columns``; what the sizes are worth does not matter any more here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

NEVER = -1  # a current size that is not among the sizes


@dataclass(slots=True)
class _Moves:
    """What the trainers from some on can use with at most k of those that could stay moving."""

    low: int  # when all that can stay do, the others take their smallest
    high: int
    ups: list[int]  # by how much each that can stay could grow, ascending
    downs: list[int]

    def least(self, moves: int) -> int:
        return self.low - (sum(self.downs[-moves:]) if moves else 0)

    def most(self, moves: int) -> int:
        return self.high + (sum(self.ups[-moves:]) if moves else 0)

    def leave_out(self, sizes: Sequence[int], current: int) -> None:
        """Go on to the next trainer."""
        if current == NEVER:
            self.low -= sizes[0]
            self.high -= sizes[-1]
            return
        self.low -= current
        self.high -= current
        self.ups.pop(bisect_left(self.ups, sizes[-1] - current))
        self.downs.pop(bisect_left(self.downs, current - sizes[0]))


def choose_tied(
    sets: Sequence[Sequence[int]], current: Sequence[int], total: int, *, is_exact: bool
) -> list[int] | None:
    """Sizes out of the sets that sum to ``total`` (at most, unless ``is_exact``).

    Takes the largest size that the sums of smallest and largest sizes do not rule out.
    As these rule out only what is impossible, a result is the best there is; None says
    that the gaps within the sets matter and nothing was found. ``current`` is NEVER where
    the trainer rescales whatever it takes, or none of its sizes is one.
    """
    moves_left = _Moves(low=0, high=0, ups=[], downs=[])
    for sizes, stay in zip(sets, current, strict=True):
        moves_left.low += sizes[0] if stay == NEVER else stay
        moves_left.high += sizes[-1] if stay == NEVER else stay
        if stay != NEVER:
            insort(moves_left.ups, sizes[-1] - stay)
            insort(moves_left.downs, stay - sizes[0])
    moves = 0
    while moves_left.least(moves) > total or (is_exact and moves_left.most(moves) < total):
        moves += 1
        if moves > len(moves_left.ups):
            return None
    chosen: list[int] = []
    for sizes, stay in zip(sets, current, strict=True):
        moves_left.leave_out(sizes, stay)
        best = NEVER
        may_stay = stay != NEVER
        if may_stay and _can_rest(moves_left, moves, total - stay, is_exact=is_exact):
            best = stay
        if not may_stay or moves:
            best = max(best, _largest(sizes, moves_left, moves - may_stay, total, is_exact))
        if best == NEVER:
            return None
        moves -= may_stay and best != stay
        total -= best
        chosen.append(best)
    return chosen if total == 0 or not is_exact else None


def _can_rest(rest: _Moves, moves: int, total: int, *, is_exact: bool) -> bool:
    return rest.least(moves) <= total and (not is_exact or rest.most(moves) >= total)


def _largest(sizes: Sequence[int], rest: _Moves, moves: int, total: int, is_exact: bool) -> int:
    """The largest size that leaves the others what they can use."""
    at = bisect_right(sizes, total - rest.least(moves)) - 1
    if at < 0 or (is_exact and total - sizes[at] > rest.most(moves)):
        return NEVER
    return sizes[at]


def reachable(sets: Sequence[Sequence[int]], limit: int) -> list[int]:
    """For each trainer on, as bits: which totals up to ``limit`` it and those after it can use."""
    mask = (1 << (limit + 1)) - 1
    bits = 1
    found = [bits]
    for sizes in reversed(sets):
        sums = 0
        for size in sizes:
            sums |= bits << size
        bits = sums & mask
        found.append(bits)
    found.reverse()
    return found


def choose_reachable(sets: Sequence[Sequence[int]], bits: Sequence[int], total: int) -> list[int]:
    """The earlier the larger, to a total that is among the reachable ones."""
    chosen: list[int] = []
    for sizes, after in zip(sets, bits[1:], strict=True):
        size = next(n for n in reversed(sizes) if n <= total and after >> (total - n) & 1)
        chosen.append(size)
        total -= size
    return chosen
