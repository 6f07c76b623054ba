"""An all-reduce of at most two exchanges, in which all sends start before any wait.

MPICH's own all-reduce goes in rounds. A send in a later round to a member whose death MPICH has
noticed meanwhile never returns (docs/design/elastic-runtime.md): 30 of 100 losses took a second
member this way, 2 of 60 if all sends start first. For contiguous buffers of one type; called by
``comm``.

Data is received into our own memory first: a member that was only slow may send its part when
the program already uses its buffer in the next generation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

SHORT_BYTES = 4096  # up to here every member sends everything to all: one exchange, not two
CODES = frozenset("bBhHiIlLqQfd")  # format codes that mpi4py maps to MPI types

Spans = list[tuple[int, int]]  # first element and count, by rank
Exchange = Callable[[Any, Any], None]  # arguments of MPI_Ialltoallv; returns when it is done


def flat(buffer: Any) -> memoryview | None:
    """Return a flat view of a contiguous buffer, None if it is not one."""
    try:
        view = memoryview(buffer)
        return view.cast("B").cast(view.format) if view.format in CODES else None  # type: ignore[call-overload]
    except (TypeError, ValueError):  # not contiguous, or not a buffer
        return None


def cut(n: int, size: int) -> Spans:
    """Divide ``n`` elements among the ranks."""
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
        """Reduce all members' ``mine`` into ``total``; bit-identical on all members.

        Args:
            mine: of the same type and length as ``total``, in other memory.
            total: the result; written when all data has arrived.
            op: an mpi4py ``Op``; applied in the order of the ranks.
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
        # Nothing to myself, so that send and receive buffers do not overlap.
        others = self._without_me([count] * self._size)
        counts = self._without_me([c for _, c in spans])
        places = [f for f, _ in spans]
        got = self._memory(n, mine)
        self._exchange([part, (others, [0] * self._size)], [got, (counts, places)])
        total[:first] = got[:first]
        total[first + count :] = got[first + count :]

    def _combine(self, mine: memoryview, spans: Spans, into: memoryview, op: Any) -> None:
        """Send each member its span; reduce the received parts of our own."""
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
