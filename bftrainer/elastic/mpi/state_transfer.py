"""Brings all members of a generation to one state.

Three cases: a planned change (rows move between old and new members), a loss (the survivors'
state, or the copies in memory), a start (the newest checkpoint, or initial values). Called by
``membership`` between two steps.

A checkpoint is one file of arrays and complete row arrays in the format of ``ground.files``,
written by one member, readable at any size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bftrainer.elastic.checkpoints.disk import CheckpointDisk
from bftrainer.elastic.checkpoints.origin_check import OriginCheck
from bftrainer.elastic.checkpoints.passed_over import TellingSearch
from bftrainer.elastic.mpi.comm import Comm
from bftrainer.elastic.mpi.state import (
    BlockRows,
    Held,
    MpiState,
    RecentCopies,
    RowSpan,
    SampleCount,
    choose,
    pieces,
)
from bftrainer.elastic.process import reports
from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.reports import NO_REPORTS, Reports
from bftrainer.ground import files
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.fence import Fence
from bftrainer.ground.files import DamagedError, UnreadableError

_DAMAGED = (KeyError, ValueError, TypeError, OverflowError)  # of a foreign file's header


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The whole state, as one member writes or reads it."""

    step: int
    samples: int
    is_complete: bool
    reports: Mapping[str, Any]
    arrays: Sequence[bytearray]
    rows: Sequence[bytearray]
    path: str = ""


class Disk(CheckpointDisk):
    """The checkpoint directory of one trainer."""

    def __init__(self, control: Control, state: MpiState, directory: str) -> None:
        super().__init__(control, directory)
        self._state = state
        self._origin = OriginCheck(control.config)

    def save(self, checkpoint: Checkpoint, fence: Fence) -> None:
        """Write; ``checkpoint`` must not change any more."""
        step, samples = checkpoint.step, checkpoint.samples
        buffers = (*checkpoint.arrays, *checkpoint.rows)
        header = {
            "layout": self._state.layout(),
            "step": step,
            "counters": {"samples": samples, "is_complete": checkpoint.is_complete},
            "reports": checkpoint.reports,
            "bytes": list(map(len, buffers)),
            **reports.trial_mark(),
            **self._origin.header(),
        }
        parts = files.parts_of(header, map(memoryview, buffers))
        self.write(parts, fence, step=step, samples=samples, layout=self._state.layout())

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that can be trusted.

        Raises:
            ElasticError: BFT-1408 when it is of another program, BFT-1343 when the file system
                does not let it be read now, BFT-1450 when it was made with other arguments.
        """
        return TellingSearch(self._control)(self.directory, self._read)

    def _read(self, path: Path) -> Checkpoint:
        parts: list[bytearray] = []

        def allocate(header: dict[str, Any]) -> list[memoryview]:
            if header.get("layout") != self._state.layout():
                raise ElasticError(
                    "BFT-1408",
                    f"The checkpoint {path} was written by a program with another state.",
                    "Name another --checkpoint-dir, or remove the old checkpoints.",
                )
            try:
                sizes = list(map(int, header["bytes"]))
                if sum(sizes) > path.stat().st_size:
                    raise DamagedError("it is cut short")
                parts.extend(map(bytearray, sizes))
            except _DAMAGED as problem:
                raise UnreadableError(f"bad table of arrays: {problem}") from problem
            return [memoryview(part) for part in parts]

        with files.opened(path) as file:
            header = files.read_from(file, allocate)
        self._origin.admit(header, str(path))
        n_arrays = len(self._state.arrays)
        # Earlier releases have none, and what another trial reported is not ours.
        is_own = "reports" in header and not reports.is_inherited(header)
        try:
            return Checkpoint(
                step=int(header["step"]),
                samples=int(header["counters"]["samples"]),
                is_complete=bool(header["counters"]["is_complete"]),
                reports=header["reports"] if is_own else NO_REPORTS,
                arrays=parts[:n_arrays],
                rows=parts[n_arrays:],
                path=str(path),
            )
        except _DAMAGED as problem:
            raise UnreadableError(f"bad counters: {problem}") from problem


class MpiStateTransfer:
    """This member's state, and its exchange with the other members."""

    def __init__(self, state: MpiState, disk: Disk, memory: RecentCopies, batch: int) -> None:
        self.state, self.disk, self.memory = state, disk, memory
        self.counted = SampleCount(batch)
        self.reports = Reports()
        self.step = 0
        self.is_complete = False
        self.is_current = False  # whether our state comes from a generation we were in
        self._initial = state.copy_arrays()

    @property
    def samples(self) -> int:
        """Samples of the steps done, of all members."""
        return self.counted.at(self.step)

    # ---- into a generation -----------------------------------------------------------

    def move_rows(
        self, union: Comm, n_old: int, new_ranks: Sequence[int | None], size: int
    ) -> None:
        """Repartition rows in a planned change; the old members are the first of ``union``."""
        for rows in self.state.rows.values():
            holders = [[share] for share in _shares(rows, n_old, range(n_old))]
            targets = [None if rank is None else rows.share(size, rank) for rank in new_ranks]
            blocks = []
            if union.rank < n_old:
                blocks.append(rows.memory())
            _move(union, rows, holders, targets, blocks)

    def spread(self, comm: Comm, root: int) -> None:
        """Broadcast the counters, reports and replicated arrays of one member."""
        mine = (self.step, self.is_complete, self.counted.marks(), self.reports.state_dict())
        step, is_complete, marks, reports = comm.share(mine)[root]
        self.counted.adopt(marks)
        self.reports.load_state_dict(reports)
        if self.step != step:
            self.is_current = False  # until all of it is here
        self.step, self.is_complete = int(step), bool(is_complete)
        for view in self.state.arrays.values():
            comm.Bcast([view, comm.mpi.BYTE], root)
        self._have_entered()

    def agree(self, comm: Comm) -> str:
        """After a loss or at a start: restore the newest state; return its file, if any."""
        mine = self.step if self.is_current and not self.state.rows else -1
        answers = comm.share((mine, self.memory.held()))
        steps = [int(step) for step, _ in answers]
        if max(steps) >= 0:
            if min(steps) < max(steps):
                self.spread(comm, steps.index(max(steps)))
            self._have_entered()
            return ""
        copies = [member_copies for _, member_copies in answers]
        newest = choose(copies)
        if self.state.rows and newest is not None:
            self._take_copies(comm, copies, *newest)
            return ""
        return self._load(comm)

    def _take_copies(
        self, comm: Comm, copies: Sequence[Sequence[Held]], step: int, size: int
    ) -> None:
        """Restore the copies of a step and size; ``copies``: which each member has, by rank."""
        copy = self.memory.find(step, size)
        owners = [_owners(member_copies, step, size) for member_copies in copies]
        for place, rows in enumerate(self.state.rows.values()):
            holders = [_shares(rows, size, ranks) for ranks in owners]
            targets = _shares(rows, comm.size, range(comm.size))
            blocks = []
            if copy is not None:
                blocks = [memoryview(copy.blocks[rank][place]) for rank in owners[comm.rank]]
            _move(comm, rows, holders, targets, blocks)
        if copy is not None:
            self.state.restore_arrays(copy.arrays)
            self.step = step
        self.is_complete = False
        self.spread(comm, next(rank for rank, ranks in enumerate(owners) if ranks))

    def _load(self, comm: Comm) -> str:
        checkpoint = self.disk.load() if comm.rank == 0 else None
        self.step, self.is_complete = 0, False
        path = ""
        if checkpoint is not None:
            path = checkpoint.path
            self.state.restore_arrays(list(map(bytearray, checkpoint.arrays)))
            self.step, self.is_complete = checkpoint.step, checkpoint.is_complete
            self.counted.resume(checkpoint.step, checkpoint.samples)
            self.reports.load_state_dict(checkpoint.reports)
        elif self._initial:
            self.state.restore_arrays(self._initial)
        path = str(comm.share(path)[0])
        for place, rows in enumerate(self.state.rows.values()):
            if not path:
                rows.renew(rows.share(comm.size, comm.rank))
                continue
            holders = [[RowSpan(0, rows.total)]]  # only rank 0 has read the file
            targets = _shares(rows, comm.size, range(comm.size))
            blocks = []
            if checkpoint is not None:
                blocks.append(memoryview(checkpoint.rows[place]))
            _move(comm, rows, holders, targets, blocks)
        self.spread(comm, 0)
        return path

    def _have_entered(self) -> None:
        self.is_current = True
        if not self.state.rows:
            self._initial = []  # from now on a member or a file has the state

    # ---- out of it -------------------------------------------------------------------

    def save(self, comm: Comm, root: int, fence: Fence, *, aside: bool) -> list[bytearray]:
        """Write a checkpoint on rank ``root`` and return its rows; all members call it.

        Raises:
            OSError: on that rank, when the file system refuses and ``aside`` is False.
        """
        whole_arrays = [gather(comm, rows, root) for rows in self.state.rows.values()]
        if comm.rank == root:
            self.save_alone(whole_arrays, fence, aside=aside)
        return whole_arrays

    def save_alone(self, rows: Sequence[bytearray], fence: Fence, *, aside: bool) -> None:
        """Write a checkpoint of this member's arrays and of whole row arrays."""
        checkpoint = Checkpoint(
            step=self.step,
            samples=self.samples,
            is_complete=self.is_complete,
            reports=self.reports.state_dict(),
            arrays=self.state.copy_arrays(),
            rows=rows,
        )
        if aside:
            self.disk.aside(lambda: self.disk.save(checkpoint, fence))
        else:
            self.disk.now(lambda: self.disk.save(checkpoint, fence))


def _shares(rows: BlockRows, size: int, ranks: Iterable[int]) -> list[RowSpan]:
    return [rows.share(size, rank) for rank in ranks]


def _owners(copies: Sequence[Held], step: int, size: int) -> tuple[int, ...]:
    """Return the ranks whose rows a member has in its newest copy of a step and size."""
    for copy_step, copy_size, owners in reversed(copies):
        if (copy_step, copy_size) == (step, size):
            return owners
    return ()


def gather(comm: Comm, rows: BlockRows, root: int) -> bytearray:
    """Return all rows on rank ``root``, nothing elsewhere; all members call it."""
    whole = bytearray(rows.total * rows.row_bytes if comm.rank == root else 0)
    holders = [[share] for share in _shares(rows, comm.size, range(comm.size))]
    targets: list[RowSpan | None] = [None] * comm.size
    targets[root] = RowSpan(0, rows.total)
    _exchange(comm, rows.row_bytes, holders, targets, [rows.memory()], memoryview(whole))
    return whole


def _move(
    comm: Comm, rows: BlockRows, holders: Sequence[Sequence[RowSpan]],
    targets: Sequence[RowSpan | None], blocks: Sequence[memoryview],
) -> None:  # fmt: skip
    """Replace this member's block, receiving its rows from their holders."""
    mine = targets[comm.rank]
    into = memoryview(bytearray())
    if mine is not None:
        into = rows.renew(mine)
    _exchange(comm, rows.row_bytes, holders, targets, blocks, into)


def _exchange(
    comm: Comm, row_bytes: int, holders: Sequence[Sequence[RowSpan]],
    targets: Sequence[RowSpan | None], blocks: Sequence[memoryview], into: memoryview,
) -> None:  # fmt: skip
    """Move rows from this member's ``blocks`` to others, and from others ``into`` its memory."""
    moves = pieces(holders, targets)
    if moves is None:
        raise RuntimeError("rows that a member reported to hold are missing")
    requests = []
    for tag, piece in enumerate(moves):
        out = place = None
        if comm.rank == piece.source:
            base = holders[piece.source][piece.span_index].first
            out = _cut(blocks[piece.span_index], piece.span, base, row_bytes)
        target = targets[piece.target]
        if comm.rank == piece.target and target is not None:
            place = _cut(into, piece.span, target.first, row_bytes)
        if out is not None and place is not None:
            place[:] = out
        elif out is not None:
            requests.append(comm.Isend([out, comm.mpi.BYTE], piece.target, tag))
        elif place is not None:
            requests.append(comm.Irecv([place, comm.mpi.BYTE], piece.source, tag))
    comm.wait(*requests)


def _cut(memory: memoryview, span: RowSpan, base: int, row_bytes: int) -> memoryview:
    return memory[(span.first - base) * row_bytes : (span.end - base) * row_bytes]
