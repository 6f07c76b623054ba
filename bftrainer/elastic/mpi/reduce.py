"""An all-reduce of two exchanges at most, in which all is sent before anything is awaited.

MPICH's own goes in rounds. A send of a later round, to a member whose death MPICH has noticed
meanwhile, never returns (docs/design/elastic-runtime.md): 30 of 100 losses took a second member so,
and 2 of 60 where all sends are begun first. Contiguous buffers of one type come in; called by
``comm``.

What arrives goes to memory of ours first: a member that was merely silent may send its part
when the program uses its own buffer for the next generation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

SHORT_BYTES = 4096  # everybody's whole message to everybody: one exchange instead of two
CODES = frozenset("bBhHiIlLqQfd")  # of the types that mpi4py finds by itself

Spans = list[tuple[int, int]]  # first element and count, by rank
Exchange = Callable[[Any, Any], None]  # what MPI_Ialltoallv takes; returns when it is done


def flat(buffer: Any) -> memoryview | None:
    """Return the elements of a contiguous buffer in one row, or None if it is no such."""
    try:
        view = memoryview(buffer)
        return view.cast("B").cast(view.format) if view.format in CODES else None  # type: ignore[call-overload]
    except (TypeError, ValueError):  # not contiguous, or nothing that a buffer can say
        return None


def cut(n: int, size: int) -> Spans:
    """Return the part of each rank of ``n`` elements."""
    starts = [n * rank // size for rank in range(size + 1)]
    return [(first, end - first) for first, end in pairwise(starts)]


class MpiReducer:
    """The all-reduces of one communicator."""

    def __init__(self, exchange: Exchange, rank: int, size: int) -> None:
        self._exchange = exchange
        self._rank = rank
        self._size = size
        self._room = bytearray()

    def reduce(self, mine: memoryview, total: memoryview, op: Any) -> None:
        """Combine everybody's ``mine`` in ``total``; everywhere to the last bit the same.

        Args:
            mine: of the same type and length as ``total`` and not the same memory.
            total: the result; written when all has arrived.
            op: what mpi4py knows as an ``Op``; the order is that of the ranks.
        """
        n = len(mine)
        if self._size == 1:
            total[:] = mine
            return
        if mine.nbytes <= SHORT_BYTES:
            self._combine(mine, [(0, n)] * self._size, total, op)
            return
        spans = cut(n, self._size)
        first, count = spans[self._rank]
        part = total[first : first + count]
        self._combine(mine, spans, part, op)
        # Nothing for myself, so that what is sent and what is received are apart.
        others = self._without_me([count] * self._size)
        counts = self._without_me([c for _, c in spans])
        places = [f for f, _ in spans]
        got = self._memory(n, mine)
        self._exchange([part, (others, [0] * self._size)], [got, (counts, places)])
        total[:first] = got[:first]
        total[first + count :] = got[first + count :]

    def _combine(self, mine: memoryview, spans: Spans, into: memoryview, op: Any) -> None:
        """Send everybody's span to it; combine what all have sent for mine."""
        first, n = spans[self._rank]
        counts = self._without_me([c for _, c in spans])
        room = self._memory(n * self._size, mine)
        blocks = [room[n * rank : n * (rank + 1)] for rank in range(self._size)]
        blocks[self._rank][:] = mine[first : first + n]
        places = [n * rank for rank in range(self._size)]
        self._exchange(
            [mine, (counts, [f for f, _ in spans])],
            [room, (self._without_me([n] * self._size), places)],
        )
        into[:] = blocks[-1]
        for block in reversed(blocks[:-1]):
            op.Reduce_local(block, into)  # into = block op into

    def _without_me(self, counts: list[int]) -> list[int]:
        return [0 if rank == self._rank else c for rank, c in enumerate(counts)]

    def _memory(self, n: int, like: memoryview) -> memoryview:
        n_bytes = n * like.itemsize
        if len(self._room) < n_bytes:
            self._room = bytearray(n_bytes)
        room: memoryview = memoryview(self._room)[:n_bytes].cast(like.format)  # type: ignore[call-overload]
        return room
