"""A communicator that can be left at any moment: every wait looks for news.

MPICH's survivors wait for ever in a collective with a dead member. So nothing here blocks
inside MPI: operations are started, then tested in a loop that also asks whether the daemon
has announced a generation without the dead one. Then ``GroupBroken`` is raised; what was
started stays behind, and the next generation has a communicator of its own. Used by the
programs (``Run.comm``) and by ``state_transfer``.
"""

from __future__ import annotations

import array
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from bftrainer.elastic.mpi.reduce import MpiReducer, flat

LOOK_EVERY = 64  # tests between two looks for news
SPINS = 4000  # tests before a wait begins to sleep: some milliseconds
NAP_S = 0.0002
LINGER_S = 0.02
_left_behind: list[Any] = []  # requests with their buffers: MPI may still write to these


class GroupBroken(BaseException):
    """The members do not come together any more: the step in flight never was."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Comm:
    """The members of a generation. Buffers are whatever mpi4py takes, numpy arrays say."""

    def __init__(self, mpi: Any, raw: Any, is_left: Callable[[], bool]) -> None:
        self.mpi = mpi
        self._raw = raw
        self._is_left = is_left
        # With their buffers: mpi4py 4.1 keeps those of a collective only as long as the caller
        # does, and a member that was merely silent may complete it after the next generation
        # has taken the same memory.
        self._open: list[Any] = []
        self.is_raw_used = False
        self.inside_since_s: float | None = None  # in a call that should return at once
        self.rank: int = raw.Get_rank()
        self.size: int = raw.Get_size()
        self._reducer = MpiReducer(self._exchange, self.rank, self.size)

    @property
    def raw(self) -> Any:
        """The mpi4py communicator. Blocking calls on it cannot be left when a member is lost:
        this process then ends, and the trainer resumes without it.
        """  # noqa: D205 - one thought
        self.is_raw_used = True
        return self._raw

    def wait(self, *requests: Any) -> None:
        """Wait until all are done.

        Raises:
            GroupBroken: a member is lost.
        """
        waiting, tests = list(requests), 0
        try:
            while waiting:
                self.inside_since_s = time.monotonic()
                is_done = waiting[-1].Test()  # one by one: of several, none is named that failed
                self.inside_since_s = None
                if is_done:
                    waiting.pop()
                    continue
                tests += 1
                if tests % LOOK_EVERY == 0 and self._is_left():
                    self.leave()
                    raise GroupBroken("left behind for a newer generation")
                if tests < SPINS:
                    os.sched_yield()  # members that share a core wait for each other
                else:
                    time.sleep(NAP_S)
        except self.mpi.Exception as problem:
            raise self._broken(problem) from None
        self._open = [(request, kept) for request, kept in self._open if request]

    def leave(self) -> None:
        """Keep what is under way from being freed."""
        _left_behind.extend(self._open)
        self._open = []

    def linger(self) -> None:
        """Give what was sent last a moment to leave this process."""
        until_s = time.monotonic() + LINGER_S
        while time.monotonic() < until_s:
            self._raw.Iprobe(self.mpi.ANY_SOURCE, self.mpi.ANY_TAG)
            os.sched_yield()

    def _broken(self, problem: Any) -> BaseException:
        """Tell the loss of a member from a mistake of the program."""
        names = ("ERR_OTHER", "ERR_INTERN", "ERR_UNKNOWN", "ERR_PROC_FAILED", "ERR_REVOKED")
        losses = {getattr(self.mpi, name) for name in names}
        self.inside_since_s = None
        self.leave()
        if problem.Get_error_class() not in losses:
            return RuntimeError(str(problem))
        return GroupBroken(str(problem).partition("\n")[0][:300])

    def _exchange(self, send: Any, receive: Any) -> None:
        self.wait(self._start(self._raw.Ialltoallv, send, receive))

    def _start(self, operation: Callable[..., Any], *what: Any) -> Any:
        self.inside_since_s = time.monotonic()
        try:
            request = operation(*what)
        except self.mpi.Exception as problem:
            raise self._broken(problem) from None
        self.inside_since_s = None
        self._open.append((request, what))
        return request

    # ---- as mpi4py names them --------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Any:  # noqa: N802
        """Begin to send; for ``wait``."""
        return self._start(self._raw.Isend, buffer, dest, tag)

    def Irecv(self, buffer: Any, source: int, tag: int = 0) -> Any:  # noqa: N802
        """Begin to receive; for ``wait``."""
        return self._start(self._raw.Irecv, buffer, source, tag)

    def Allreduce(self, send: Any, receive: Any, op: Any = None) -> None:  # noqa: N802
        """Combine over all members, by default the sum."""
        op, mine, total = op or self.mpi.SUM, flat(send), flat(receive)
        if mine and total and (mine.format, len(mine)) == (total.format, len(total)):
            self._reducer.reduce(mine, total, op)
        else:  # types of the program's own, parts of buffers, MPI.IN_PLACE
            self.wait(self._start(self._raw.Iallreduce, send, receive, op))

    def Bcast(self, buffer: Any, root: int = 0) -> None:  # noqa: N802
        """Send from one to all."""
        self.wait(self._start(self._raw.Ibcast, buffer, root))

    def Allgather(self, send: Any, receive: Any) -> None:  # noqa: N802
        """Collect everybody's part everywhere, all of one size."""
        self.wait(self._start(self._raw.Iallgather, send, receive))

    def Allgatherv(self, send: Any, receive: Any) -> None:  # noqa: N802
        """Collect everybody's part everywhere."""
        self.wait(self._start(self._raw.Iallgatherv, send, receive))

    def Barrier(self) -> None:  # noqa: N802
        """Wait for everybody."""
        self.most([0])

    # ---- for the runtime -------------------------------------------------------------

    def most(self, numbers: Sequence[int]) -> list[int]:
        """Return the largest of everybody's numbers, place by place."""
        mine, all_ = array.array("q", numbers), array.array("q", numbers)
        self.Allreduce(mine, all_, self.mpi.MAX)
        return list(all_)

    def share(self, value: Any) -> list[Any]:
        """Return everybody's value (JSON) in rank order."""
        mine = json.dumps(value).encode()
        lengths = array.array("q", bytes(8 * self.size))
        self.Allgather(array.array("q", [len(mine)]), lengths)
        together = bytearray(sum(lengths))
        self.Allgatherv([mine, self.mpi.BYTE], [together, (list(lengths), None), self.mpi.BYTE])
        values, start = [], 0
        for length in lengths:
            values.append(json.loads(together[start : start + length]))
            start += length
        return values
