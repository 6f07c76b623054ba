"""The state of an elastic MPI program: arrays, rows divided among members, samples.

An array may be any writable contiguous buffer (numpy arrays, ``array.array``): only its bytes are
used. From the rows that members hold and need follows a list of transfers, the same on all members.
Used by ``run`` and ``state_transfer``.

``RecentCopies``: at intervals each member copies its rows and sends them to the next rank, which
still has them when the member dies. ``run`` decides when; ``state_transfer`` restores from the
copies. Not needed for state that all members have.

``SampleCount``: a batch changes between two steps, where a generation begins. From these changes
follows the count at any step, also at an earlier one to which a loss leads back.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bftrainer.elastic.mpi.comm import Comm
from bftrainer.ground.errors import ElasticError

KEPT = 2  # a copy is usable once all members have it; until then the previous one is needed

Held = tuple[int, int, tuple[int, ...]]  # step, size, ranks whose rows are held


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
    """Rows that ``source`` sends to ``target``; ``span_index`` is that of the source's span."""

    source: int
    span_index: int
    target: int
    span: RowSpan


class _Holder(NamedTuple):
    """A member that has a row; a target prefers the least."""

    is_foreign: bool  # another member than the target
    rank: int
    span_index: int  # of the span among those of the member
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
    for target, rows in enumerate(targets):
        if rows is None:
            continue
        at = rows.first
        while at < rows.end:
            holder = _holder_of(holders, at, target)
            if holder is None:
                return None
            end = min(holder.span.end, rows.end)
            if holder.is_foreign and target < len(holders):  # up to the target's next own rows
                own_starts = [span.first for span in holders[target] if at < span.first < end]
                end = min([end, *own_starts])
            moves.append(
                RowTransfer(
                    source=holder.rank,
                    span_index=holder.span_index,
                    target=target,
                    span=RowSpan(at, end - at),
                )
            )
            at = end
    return moves


def _holder_of(holders: Sequence[Sequence[RowSpan]], row: int, target: int) -> _Holder | None:
    candidates = []
    for rank, spans in enumerate(holders):
        for index, span in enumerate(spans):
            if span.first <= row < span.end:
                candidates.append(_Holder(rank != target, rank, index, span))
    return min(candidates, default=None)


def bytes_of(buffer: Any, name: str) -> memoryview:
    """Return the memory of an array.

    Raises:
        ElasticError: BFT-1443 when it cannot be written or has gaps.
    """
    problem = ""
    try:
        view = memoryview(buffer)
        if view.readonly or not view.c_contiguous:
            problem = "it is read-only or has gaps"
    except (TypeError, ValueError, BufferError) as refused:
        problem = str(refused)
    if problem:
        raise ElasticError(
            "BFT-1443",
            f"The state {name!r} cannot be handed over: {problem}.",
            "Give a writable contiguous array, such as numpy.zeros(n), and change it in place.",
        )
    if view.nbytes == 0:  # ``cast`` refuses a shape with a zero
        return memoryview(bytearray())
    return view.cast("B")


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
            return list(map(bytearray, self.arrays.values()))
        for copy, view in zip(into, self.arrays.values(), strict=True):
            copy[:] = view
        return into

    def restore_arrays(self, copies: list[bytearray]) -> None:
        """Restore the replicated arrays from a copy."""
        for copy, view in zip(copies, self.arrays.values(), strict=True):
            view[:] = copy


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopy:
    """This member's part of the state at a step."""

    step: int
    size: int
    arrays: list[bytearray]
    blocks: dict[int, list[bytearray]]  # by rank at that size, in the order of the rows


class RecentCopies:
    """The newest copies of this member."""

    def __init__(self, state: MpiState) -> None:
        self._state = state
        self._copies: list[StateCopy] = []

    def take(self, comm: Comm, step: int) -> None:
        """Copy this member's rows and those of the previous rank; all members call it."""
        row_arrays = self._state.rows.values()
        own_blocks = [bytearray(rows.memory()) for rows in row_arrays]
        blocks = {comm.rank: own_blocks}
        if comm.size > 1:
            previous, following = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
            their_blocks = []
            for rows in row_arrays:
                span = rows.share(comm.size, previous)
                their_blocks.append(bytearray(span.count * rows.row_bytes))
            requests = [comm.Irecv(block, previous, tag) for tag, block in enumerate(their_blocks)]
            requests += [comm.Isend(block, following, tag) for tag, block in enumerate(own_blocks)]
            comm.wait(*requests)
            blocks[previous] = their_blocks
        fresh = StateCopy(
            step=step, size=comm.size, arrays=self._state.copy_arrays(), blocks=blocks
        )
        self._copies = [*self._copies[1 - KEPT :], fresh]

    def held(self) -> list[Held]:
        """Return which copies this member has."""
        return [(copy.step, copy.size, tuple(sorted(copy.blocks))) for copy in self._copies]

    def find(self, step: int, size: int) -> StateCopy | None:
        """Return this member's copy of a step and size, if any."""
        for copy in reversed(self._copies):
            if (copy.step, copy.size) == (step, size):
                return copy
        return None


def choose(said: Sequence[Sequence[Held]]) -> tuple[int, int] | None:
    """Return step and size of the newest copy that the members have completely. Pure."""
    ranks: dict[tuple[int, int], set[int]] = {}
    for copies in said:
        for step, size, owners in copies:
            ranks.setdefault((step, size), set()).update(owners)
    complete = [(step, size) for (step, size), owners in ranks.items() if len(owners) == size]
    return max(complete, default=None)


class StepSize(NamedTuple):
    """From where on a step has so many samples."""

    step: int
    samples: int  # until then
    batch: int  # samples of a step from then on


class SampleCount:
    """Samples by step; equal on all members."""

    def __init__(self, batch: int) -> None:
        self._marks: list[StepSize] = [StepSize(0, 0, batch)]

    @property
    def batch(self) -> int:
        """Samples of a step, over all members."""
        return self._marks[-1].batch

    def at(self, step: int) -> int:
        """Return the samples of the first ``step`` steps."""
        last = self._marks[0]
        for mark in self._marks:
            if mark.step <= step:
                last = mark
        return last.samples + (step - last.step) * last.batch

    def begin(self, step: int, batch: int = 0) -> None:
        """A generation begins after ``step`` steps; ``batch``: 0 keeps the present one."""
        samples = self.at(step)
        batch = batch or self.batch
        self._marks = [mark for mark in self._marks if mark.step < step]
        if not self._marks or self.batch != batch:
            self._marks.append(StepSize(step, samples, batch))

    def resume(self, step: int, samples: int) -> None:
        """Continue from a checkpoint."""
        self._marks = [StepSize(step, samples, self.batch)]

    def marks(self) -> Sequence[StepSize]:
        """Return what ``adopt`` takes on another member."""
        return self._marks

    def adopt(self, marks: Iterable[Sequence[int]]) -> None:
        """Take another member's count."""
        self._marks = [StepSize(*numbers) for numbers in marks]
