"""Membership of a program started without an agent: alone, by ``mpirun``, or by ``command``.

Its members are those of MPI_COMM_WORLD, with any MPI. Under runtime ``command`` it follows that
runtime's contract (docs/howto/train-command.md): it is resized by restart. With ULFM (Open MPI
5, ``mpirun --with-ft ulfm``) the survivors of a loss continue: revoke, shrink, and restore the
state as after any loss. Used by ``run`` in place of ``membership``.
"""

from __future__ import annotations

import atexit
import math
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bftrainer.elastic.fence import Fence
from bftrainer.elastic.mpi.comm import Comm, GroupBroken
from bftrainer.elastic.mpi.membership import Change
from bftrainer.elastic.mpi.state import RecentCopies
from bftrainer.elastic.mpi.state_transfer import MpiStateTransfer
from bftrainer.elastic.reports import finite

SAVED = 85  # "the checkpoint is written, start me again"


class Launched:
    """The fixed membership of such a program, reduced only by the loss of members."""

    def __init__(self, mpi: Any, handover: MpiStateTransfer, memory: RecentCopies) -> None:
        self.on_change: Callable[[Change], object] = lambda _change: None
        self.stepped_s: float | None = None
        self._mpi, self._handover, self._memory = mpi, handover, memory
        self._comm: Comm | None = None
        self._has_lost = False
        self._asked: list[int] = []
        atexit.register(self._finalize)
        self._control_file = Path(os.environ.get("BFT_CONTROL_FILE", os.devnull))
        if "BFT_CONTROL_FILE" in os.environ:
            signal.signal(signal.SIGUSR1, lambda number, _: self._asked.append(number))

    @staticmethod
    def directory() -> str:
        """Return the checkpoint directory; "": none."""
        return os.environ.get("BFT_CHECKPOINT_DIR", "")

    @staticmethod
    def interval_s() -> float:
        """Return the time between two checkpoints."""
        return float(os.environ.get("BFT_CHECKPOINT_INTERVAL_S", math.inf))

    def group(self) -> Comm:
        """Return the communicator of the members."""
        if self._comm is None:
            raise RuntimeError("the loop has not begun")
        return self._comm

    def fence(self) -> Fence:
        """Return the fence of the checkpoints."""
        number = int(os.environ.get("BFT_GENERATION", "0"))
        return Fence(incarnation=0, generation=number, token="")

    def has_news(self) -> bool:
        """Return False: there are no announcements."""
        return False

    def is_asked(self) -> bool:
        """Return whether runtime ``command`` has requested a checkpoint and the end."""
        return bool(self._asked) or "stop" in self._control_file.read_text()

    def stop(self) -> None:
        """Exit after the checkpoint was written."""
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # our own request may still arrive
        self._end(SAVED)

    def progress(self, step: int, samples: int) -> None:
        """Print the progress."""
        if self.group().rank == 0 and "BFT_TRAINER" in os.environ:
            sys.stdout.write(f"BFT step={step} samples={samples}\n")
            sys.stdout.flush()

    def report(self, value: Any, *, step: int, epoch: int, samples: int) -> None:
        """Print a metric, as runtime ``command`` takes it."""
        del epoch
        number = finite(value)
        if self.group().rank == 0 and "BFT_TRAINER" in os.environ:
            sys.stdout.write(f"BFT step={step} samples={samples} value={number!r}\n")
            sys.stdout.flush()

    def enter_next(self) -> None:
        """Begin with all launched members, or with those that are alive."""
        try:
            self._enter(self._mpi.COMM_WORLD, 0)
        except GroupBroken as broken:
            self.recover(broken.reason)

    def recover(self, reason: str) -> None:
        """Continue without the lost members.

        Raises:
            RuntimeError: this MPI does not support that.
        """
        sys.stderr.write(f"bftrainer: a member was lost: {reason}\n")
        self._has_lost = True
        while True:
            old = self.group()
            raw = old._raw  # noqa: SLF001 - the wrapper's other half
            try:
                raw.Revoke()
                shrunk = raw.Shrink()
            except (self._mpi.Exception, NotImplementedError) as problem:
                raise RuntimeError(f"this MPI cannot continue without it: {problem}") from None
            try:
                self._enter(shrunk, old.size)
            except GroupBroken:
                continue
            return

    def _enter(self, raw: Any, old_size: int) -> None:
        comm = self._comm = Comm(self._mpi, raw, lambda: False)
        self._handover.agree(comm)
        if self._handover.state.rows:
            self._memory.take(comm, self._handover.step)
        self.on_change(
            Change(
                comm=comm,
                old_rank=None,
                old_size=old_size,
                new_rank=comm.rank,
                new_size=comm.size,
                step=self._handover.step,
                is_planned=False,
            )
        )
        self.progress(self._handover.step, self._handover.samples)

    def leave_loop(self) -> bool:
        """Return whether this is rank 0."""
        is_first = self.group().rank == 0
        if self._has_lost and not is_first:
            self._end(0)
        return is_first

    def _finalize(self) -> None:
        """Finalise MPI unless a member was lost: MPI_Finalize would wait for it."""
        if not self._has_lost and not self._mpi.Is_finalized():
            self._mpi.Finalize()

    def _end(self, status: int) -> None:
        if self._has_lost:  # mpi4py would finalise if the script loaded it before us
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        raise SystemExit(status)
