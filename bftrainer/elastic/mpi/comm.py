"""A communicator whose waits can be abandoned, connected from separate processes.

MPICH's survivors wait for ever in a collective with a dead member. So nothing here blocks
inside MPI: operations are started, then tested in a loop that also checks whether a generation
without the dead member has been announced. If so, ``GroupBroken`` is raised; operations in
progress are abandoned, and the next generation has its own communicator. Used by the programs
(``Run.comm``) and by ``state_transfer``.

``unite`` connects *units*: the old members together, or a single process. Each has a communicator;
the result contains all units in order. Groups of units merge in pairs, so n units take log2(n)
rounds. Port names are exchanged through the generation's store. Each of these calls may hang when
a member dies, so ``membership`` runs ``unite`` in a side thread.
"""

from __future__ import annotations

import array
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from bftrainer.elastic.process.store import StoreClient
from bftrainer.ground.protocol import Commit

LOOK_EVERY = 64  # tests between two checks for a newer generation
SPINS = 4000  # tests before a wait begins to sleep: a few milliseconds
NAP_S = 0.0002
LINGER_S = 0.02
_left_behind: list[Any] = []  # abandoned requests and their buffers: MPI may still write there


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
    """All-reduces of at most two exchanges, in which all sends start before any wait.

    MPICH's own all-reduce goes in rounds. A send in a later round to a member whose death MPICH has
    noticed meanwhile never returns (docs/adr/0011-mpi.md): 30 of 100 losses took a second
    member this way, 2 of 60 if all sends start first. For contiguous buffers of one type.

    Data is received into our own memory first: a member that was only slow may send its part when
    the program already uses its buffer in the next generation.
    """

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
        counts_to_send = self._without_me([count] * self._size)
        counts, starts = self._counts_and_starts(spans)
        parts = self._memory(n, mine)
        self._exchange([part, (counts_to_send, [0] * self._size)], [parts, (counts, starts)])
        total[:first] = parts[:first]
        total[first + count :] = parts[first + count :]

    def _combine(self, mine: memoryview, spans: Spans, into: memoryview, op: Any) -> None:
        """Send each member its span; reduce the received parts of our own."""
        first, n = spans[self._rank]
        counts, starts = self._counts_and_starts(spans)
        room = self._memory(n * self._size, mine)
        places = [n * rank for rank in range(self._size)]
        blocks = [room[place : place + n] for place in places]
        blocks[self._rank][:] = mine[first : first + n]
        self._exchange(
            [mine, (counts, starts)], [room, (self._without_me([n] * self._size), places)]
        )
        into[:] = blocks[-1]
        for block in reversed(blocks[:-1]):
            op.Reduce_local(block, into)  # into = block op into

    def _counts_and_starts(self, spans: Spans) -> tuple[list[int], list[int]]:
        """Return how many elements go from or to each other member, and where they begin."""
        counts = [count for _, count in spans]
        starts = [first for first, _ in spans]
        return self._without_me(counts), starts

    def _without_me(self, counts: list[int]) -> list[int]:
        return [*counts[: self._rank], 0, *counts[self._rank + 1 :]]

    def _memory(self, n: int, like: memoryview) -> memoryview:
        n_bytes = n * like.itemsize
        if len(self._room) < n_bytes:
            self._room = bytearray(n_bytes)
        room: memoryview = memoryview(self._room)[:n_bytes].cast(like.format)  # type: ignore[call-overload]
        return room


class GroupBroken(BaseException):
    """A collective of this generation failed: the step in flight is void."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Comm:
    """The members of a generation. Buffers are what mpi4py accepts, such as numpy arrays."""

    def __init__(self, mpi: Any, raw: Any, is_left: Callable[[], bool]) -> None:
        self.mpi = mpi
        self._raw = raw
        self._is_left = is_left
        # With their buffers: mpi4py 4.1 keeps a collective's buffers only as long as the caller
        # does, and a member that was only slow may complete it after the memory was reused.
        self._open: list[Any] = []
        self.is_raw_used = False
        self.inside_since_s: float | None = None  # in a call that should return at once
        self.rank: int = raw.Get_rank()
        self.size: int = raw.Get_size()
        self._reducer = MpiReducer(self._exchange, self.rank, self.size)

    @property
    def raw(self) -> Any:
        """The mpi4py communicator. Blocking calls on it cannot be abandoned when a member is
        lost: this process then ends, and the trainer resumes without it.
        """  # noqa: D205 - one paragraph
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
                is_done = waiting[-1].Test()  # one by one: Testall does not name a failed one
                self.inside_since_s = None
                if is_done:
                    waiting.pop()
                    continue
                tests += 1
                if tests % LOOK_EVERY == 0 and self._is_left():
                    self.leave()
                    raise GroupBroken("abandoned for a newer generation")
                if tests < SPINS:
                    os.sched_yield()  # members may share a core
                else:
                    time.sleep(NAP_S)
        except self.mpi.Exception as problem:
            raise self._broken(problem) from None
        self._open = [(request, buffers) for request, buffers in self._open if request]

    def leave(self) -> None:
        """Keep the buffers of operations in progress from being freed."""
        _left_behind.extend(self._open)
        self._open = []

    def linger(self) -> None:
        """Drive MPI for a moment, so that the last messages leave this process."""
        until_s = time.monotonic() + LINGER_S
        while time.monotonic() < until_s:
            self._raw.Iprobe(self.mpi.ANY_SOURCE, self.mpi.ANY_TAG)
            os.sched_yield()

    def _broken(self, problem: Any) -> Any:
        """Return ``GroupBroken`` for the loss of a member; the script's errors as they are."""
        names = ("ERR_OTHER", "ERR_INTERN", "ERR_UNKNOWN", "ERR_PROC_FAILED", "ERR_REVOKED")
        losses = {getattr(self.mpi, name) for name in names}
        self.inside_since_s = None
        self.leave()
        if problem.Get_error_class() not in losses:
            return problem
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

    # ---- names as in mpi4py ----------------------------------------------------------

    def Isend(self, buffer: Any, dest: int, tag: int = 0) -> Any:  # noqa: N802
        """Begin to send; for ``wait``."""
        return self._start(self._raw.Isend, buffer, dest, tag)

    def Irecv(self, buffer: Any, source: int, tag: int = 0) -> Any:  # noqa: N802
        """Begin to receive; for ``wait``."""
        return self._start(self._raw.Irecv, buffer, source, tag)

    def Allreduce(self, send: Any, receive: Any, op: Any = None) -> None:  # noqa: N802
        """Reduce over all members, by default the sum."""
        op, mine, total = op or self.mpi.SUM, flat(send), flat(receive)
        if mine and total and (mine.format, len(mine)) == (total.format, len(total)):
            self._reducer.reduce(mine, total, op)
        else:  # user-defined types, parts of buffers, MPI.IN_PLACE
            self.wait(self._start(self._raw.Iallreduce, send, receive, op))

    def Bcast(self, buffer: Any, root: int = 0) -> None:  # noqa: N802
        """Broadcast from ``root``."""
        self.wait(self._start(self._raw.Ibcast, buffer, root))

    def Allgather(self, send: Any, receive: Any) -> None:  # noqa: N802
        """Gather all members' parts on all members; all of equal size."""
        self.wait(self._start(self._raw.Iallgather, send, receive))

    def Allgatherv(self, send: Any, receive: Any) -> None:  # noqa: N802
        """Gather all members' parts on all members."""
        self.wait(self._start(self._raw.Iallgatherv, send, receive))

    def Barrier(self) -> None:  # noqa: N802
        """Wait for all members."""
        self.most([0])

    # ---- for the runtime -------------------------------------------------------------

    def most(self, numbers: Sequence[int]) -> list[int]:
        """Return the element-wise maximum over all members."""
        mine, all_ = array.array("q", numbers), array.array("q", numbers)
        self.Allreduce(mine, all_, self.mpi.MAX)
        return list(all_)

    def share(self, value: Any) -> list[Any]:
        """Return all members' values (JSON) in rank order."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """The members of the old generation, if it is intact, followed by the joiners."""

    raw: Any
    old_ids: tuple[str, ...]  # of workers in their old order; empty: all are joiners
    ids: tuple[str, ...]  # of all, by rank


def unite(
    mpi: Any, commit: Commit, *, worker_id: str, old: tuple[str, ...], raw: Any, timeout_s: float
) -> Union:
    """Connect to the members of ``commit`` and to those that it removes.

    Args:
        mpi: the library.
        commit: the generation.
        worker_id: our own.
        old: the members of ``raw``; empty for a single process.
        raw: our communicator.
        timeout_s: how long to wait for any one member.
    """
    prefix = f"{commit.generation}.{commit.attempt}.{commit.token}"
    store = StoreClient(commit.store_host, commit.store_port, commit.token, timeout_s)
    try:
        store.set(f"{prefix}/here/{worker_id}", json.dumps(old))
        members = sorted(commit.members, key=lambda member: member.rank)
        roster = [member.worker_id for member in members]
        groups = [json.loads(store.get(f"{prefix}/here/{name}")) for name in roster]
        # All members of the intact group name the same; joiners name none.
        whole: tuple[str, ...] = tuple(next(filter(None, groups), ()))
        for name in whole:
            if name not in roster:  # a leaver
                store.get(f"{prefix}/here/{name}")
        joiners = [name for name in roster if name not in whole]
        units: list[tuple[str, ...]] = [(name,) for name in joiners]
        if whole:
            units.insert(0, whole)
        mine = next(i for i, unit in enumerate(units) if worker_id in unit)
        united = _pair_up(mpi, store, prefix, mine, len(units), raw)
    finally:
        store.close()
    return Union(raw=united, old_ids=whole, ids=(*whole, *joiners))


def _pair_up(mpi: Any, store: StoreClient, prefix: str, mine: int, n_units: int, raw: Any) -> Any:
    """Merge neighbouring groups of 1, 2, 4, ... units; ranks keep the order of units."""
    comm, stride = raw, 1
    while stride < n_units:
        start = mine // stride * stride  # the first unit of our group
        is_lower = start % (2 * stride) == 0
        low = start if is_lower else start - stride
        if low + stride < n_units:
            key = f"{prefix}/port/{low}/{stride}"
            inter = _accept(mpi, store, key, comm) if is_lower else _connect(store, key, comm)
            merged = inter.Merge(not is_lower)
            inter.Disconnect()
            if comm is not raw:
                comm.Free()
            comm = merged
        stride *= 2
    return comm


def _accept(mpi: Any, store: StoreClient, key: str, comm: Any) -> Any:
    if comm.Get_rank() != 0:
        return comm.Accept("", root=0)
    port = mpi.Open_port()
    try:
        store.set(key, port)
        return comm.Accept(port, root=0)
    finally:
        mpi.Close_port(port)


def _connect(store: StoreClient, key: str, comm: Any) -> Any:
    if comm.Get_rank() != 0:
        return comm.Connect("", root=0)
    return comm.Connect(store.get(key).decode(), root=0)
