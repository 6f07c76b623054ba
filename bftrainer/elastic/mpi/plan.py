"""Plans the transfer of rows when a domain is repartitioned. Pure.

From the rows that members hold and need it makes a list of transfers, the same on all members.
Called by ``state_transfer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class RowSpan:
    """Rows ``first`` to ``first + count - 1``."""

    first: int
    count: int

    @property
    def end(self) -> int:
        """The row after the last."""
        return self.first + self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTransfer:
    """Rows that ``source`` sends to ``target``; ``held`` indexes the source's spans."""

    source: int
    held: int
    target: int
    span: RowSpan


def share_of(total: int, size: int, rank: int) -> RowSpan:
    """Return the rows of a rank: consecutive blocks of nearly equal size."""
    first = total * rank // size
    return RowSpan(first, total * (rank + 1) // size - first)


def pieces(
    holders: Sequence[Sequence[RowSpan]], targets: Sequence[RowSpan | None]
) -> list[RowTransfer] | None:
    """Return the transfers; None when no member holds some needed row.

    A target uses rows it holds itself, others come from the lowest rank that has them.
    """
    moves: list[RowTransfer] = []
    for target, wanted in enumerate(targets):
        at = wanted.first if wanted else 0
        while wanted and at < wanted.end:
            candidates = [
                (rank != target, rank, held, span)
                for rank, spans in enumerate(holders)
                for held, span in enumerate(spans)
                if span.first <= at < span.end
            ]
            if not candidates:
                return None
            is_foreign, rank, held, span = min(candidates)
            end = min(span.end, wanted.end)
            if is_foreign:  # up to the target's next own rows
                own = [s.first for s in _of(holders, target) if at < s.first < end]
                end = min([end, *own])
            moves.append(
                RowTransfer(source=rank, held=held, target=target, span=RowSpan(at, end - at))
            )
            at = end
    return moves


def _of(holders: Sequence[Sequence[RowSpan]], rank: int) -> Sequence[RowSpan]:
    return holders[rank] if rank < len(holders) else ()
