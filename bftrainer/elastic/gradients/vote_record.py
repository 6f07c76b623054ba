"""The numbers that are added up over all members along with the gradients of a step.

One tensor holds, in this order: a vote to switch, a mark for each parameter that has a gradient,
what the script declares a pass to weigh and the share of the batch it is declared for, what tells
whether the states are alike, and where noise is measured a sum of squares. Members of two releases
add up each other's, so the order stays. Used by the reducers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

VOTE_AT: Final = 0
MARKS_AT: Final = 1


class DeclaredWeight(NamedTuple):
    """What the script declares its samples to weigh, added up."""

    weight: float = 0.0
    share: float = 0.0  # of the batch, for which it declares any

    def plus(self, other: DeclaredWeight) -> DeclaredWeight:
        """Return the sum of both."""
        return DeclaredWeight(self.weight + other.weight, self.share + other.share)


class VoteSums(NamedTuple):
    """What all members wrote, added up."""

    votes: int
    marks: list[float]  # by parameter; 0: no member has a gradient
    declared: DeclaredWeight
    compared: list[float]
    square: float  # over the members, of the squared norms of their gradients; 0: not measured


class VoteLayout:
    """Where the numbers lie; every update asks, so the places are worked out once."""

    __slots__ = ("_compared_at", "_declared_at", "_square_at", "compared", "has_square", "size")

    def __init__(self, *, parameters: int, compared: int, has_square: bool = False) -> None:
        """Lay them out; ``compared`` of them tell whether the states are alike."""
        self.compared, self.has_square = compared, has_square
        self._declared_at = MARKS_AT + parameters
        self._compared_at = self._declared_at + len(DeclaredWeight._fields)
        self._square_at = self._compared_at + compared
        self.size = self._square_at + has_square  # how many numbers there are

    def write(
        self,
        flags: torch.Tensor,
        *,
        votes: bool,
        marks: Sequence[float] | None,
        declared: DeclaredWeight,
        compared: Sequence[float],
        square: float = 0.0,
    ) -> None:
        """Write one member's numbers.

        Args:
            flags: as long as this layout, or longer.
            votes: whether the member wants to switch.
            marks: 1.0 for each parameter with a gradient; None: all have one.
            declared: of this member's passes.
            compared: as ``comparison.StateComparison.votes`` has them.
            square: of the norm of this member's gradients.
        """
        if marks is None:
            flags.fill_(1.0)
        else:
            flags.zero_()
            flags[MARKS_AT : self._declared_at] = torch.tensor(marks, dtype=flags.dtype)
        flags[VOTE_AT] = float(votes)
        numbers = [*declared, *compared]
        if self.has_square:
            numbers.append(square)
        flags[self._declared_at : self.size] = torch.tensor(numbers, dtype=flags.dtype)

    def read(self, flags: torch.Tensor) -> VoteSums:
        """Return the sums over all members."""
        numbers: list[float] = flags.tolist()
        square = 0.0
        if self.has_square:
            square = numbers[self._square_at]
        return VoteSums(
            votes=round(numbers[VOTE_AT]),
            marks=numbers[MARKS_AT : self._declared_at],
            declared=DeclaredWeight(*numbers[self._declared_at : self._compared_at]),
            compared=numbers[self._compared_at : self._square_at],
            square=square,
        )

    def put_votes(self, flags: torch.Tensor, votes: torch.Tensor) -> None:
        """Replace the sum of votes."""
        flags[VOTE_AT] = votes

    def without_marks(self) -> VoteLayout:
        """Return the layout of what is counted over all workers of a sharded model."""
        return VoteLayout(parameters=0, compared=self.compared)

    def put_counts(self, flags: torch.Tensor, counts: torch.Tensor) -> None:
        """Replace all but the marks with what ``without_marks`` has."""
        flags[VOTE_AT] = counts[VOTE_AT]
        flags[self._declared_at : self._square_at] = counts[MARKS_AT:]
