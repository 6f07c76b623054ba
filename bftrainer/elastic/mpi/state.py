"""The state of an elastic MPI program: replicated arrays, and rows divided among the members.

Any writable contiguous buffer will do (numpy arrays, ``array.array``): only its bytes are
used. Used by ``run``, ``state_transfer``, ``memory`` and ``disk``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from bftrainer.elastic.errors import ElasticError
from bftrainer.elastic.mpi.plan import RowSpan, share_of


def bytes_of(buffer: Any, name: str) -> memoryview:
    """Return the memory of an array.

    Raises:
        ElasticError: BFT-1443 when it cannot be written or has gaps.
    """
    try:
        view = memoryview(buffer)
        problem = "it is read-only or has gaps" if view.readonly or not view.c_contiguous else ""
    except (TypeError, ValueError, BufferError) as refused:
        problem = str(refused)
    if problem:
        raise ElasticError(
            "BFT-1443",
            f"The state {name!r} cannot be handed over: {problem}.",
            "Give a writable contiguous array, such as numpy.zeros(n), and change it in place.",
        )
    return view.cast("B") if view.nbytes else memoryview(bytearray())


class BlockRows:
    """An array of ``total`` rows, of which each member has a block.

    ``make(first, count)`` returns a new array with the initial values of rows ``first`` to
    ``first + count - 1``. ``local`` is this member's block. Every change of size replaces it,
    so read it in every step.
    """

    def __init__(self, total: int, make: Callable[[int, int], Any]) -> None:
        self.total = total
        self._make = make
        self.span = RowSpan(0, 0)
        self.local: Any = make(0, 1)
        self.row_bytes = bytes_of(self.local, "rows").nbytes

    @property
    def first(self) -> int:
        """Number of the first row of the block."""
        return self.span.first

    @property
    def count(self) -> int:
        """Rows of the block."""
        return self.span.count

    def renew(self, span: RowSpan) -> memoryview:
        """Replace the block by one of these rows, with initial values; return its memory."""
        self.span, self.local = span, self._make(span.first, span.count)
        return self.memory()

    def memory(self) -> memoryview:
        """Return the bytes of the block."""
        view = bytes_of(self.local, "rows")
        if view.nbytes != self.span.count * self.row_bytes:
            raise ElasticError(
                "BFT-1443",
                f"A block of {self.span.count} rows has {view.nbytes} bytes,"
                f" not {self.span.count} times {self.row_bytes}.",
                "make(first, count) must return count rows of equal size.",
            )
        return view

    def share(self, size: int, rank: int) -> RowSpan:
        """Return the rows of a rank at a size."""
        return share_of(self.total, size, rank)


class MpiState:
    """All registered state, in order of registration."""

    def __init__(self, replicated: Mapping[str, Any], rows: Mapping[str, BlockRows]) -> None:
        self.arrays = {name: bytes_of(buffer, name) for name, buffer in replicated.items()}
        self._kept = dict(replicated)  # keeps the arrays of the views above alive
        self.rows = dict(rows)

    def layout(self) -> int:
        """Return a number that differs between programs with different state."""
        sizes = [(name, view.nbytes) for name, view in self.arrays.items()]
        blocks = [(name, rows.total, rows.row_bytes) for name, rows in self.rows.items()]
        return zlib.crc32(repr((sizes, blocks)).encode())

    def copy_arrays(self, into: list[bytearray] | None = None) -> list[bytearray]:
        """Return a copy of the replicated arrays, in ``into`` if given."""
        if into is None:
            return [bytearray(view) for view in self.arrays.values()]
        for copy, view in zip(into, self.arrays.values(), strict=True):
            copy[:] = view
        return into

    def restore_arrays(self, copies: list[bytearray]) -> None:
        """Restore the replicated arrays from a copy."""
        for copy, view in zip(copies, self.arrays.values(), strict=True):
            view[:] = copy
