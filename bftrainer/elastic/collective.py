"""What a generation needs of whatever carries its tensors, and the rules of waiting for it.

A back end is used through ``Collective``: gloo's is here, the one for GPUs in ``device``.
What is under way is a ``CollectiveWork``; ``settle`` waits for it in slices, so that it can be left
at any moment. Used by ``group``, ``buckets``, ``ordered_reduction`` and ``state_transfer``.
"""

from __future__ import annotations

import re
import signal
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import BroadcastOptions

from bftrainer.elastic.abandonable import LEFT_BEHIND, Broken

WAIT_SLICE = timedelta(milliseconds=20)
_GLOO_PLACE = re.compile(r"^\[[^\]]{1,200}\.(?:cc|cpp|h):\d{1,6}\] ?")


class ExpiredError(RuntimeError):
    """A collective has not ended within its time, and is not waited for any longer."""


class CollectiveWork(Protocol):
    """A collective under way."""

    def is_completed(self) -> bool:
        """Whether it has ended, well or not: it writes into its tensor no more."""

    def wait(self, timeout: timedelta) -> object:
        """Wait so long at most; the work goes on if that was not enough.

        Raises:
            ExpiredError: its time is over.
            RuntimeError: it failed, or has not ended yet.
        """


class Collective(Protocol):
    """The collectives of one generation. All members start the same ones in the same order."""

    name: str

    def all_reduce(self, tensor: torch.Tensor) -> CollectiveWork:
        """Start to add up a tensor of all members, in place."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> CollectiveWork:
        """Start to bring the tensor of rank ``root`` to all."""

    def abort(self) -> None:
        """End what is under way here; members that wait for us fail, or leave us behind."""

    def close(self) -> None:
        """Abort, and let go of everything, without waiting for either to be done."""

    def is_gone(self, within_s: float) -> bool:
        """Whether nothing of it can write any more, waiting so long at most."""


class BackendTeardown:
    """Destroys a closed back end in a thread of its own: that takes up to 80 ms."""

    def __init__(self) -> None:
        self._is_over = threading.Event()

    def begin(self, holders: list[Any], before: Callable[[], object] = bool) -> None:
        """Do what comes ``before``, then let go of ``holders``, whose first one is to end."""
        ghost = weakref.ref(holders[0])

        def destroy() -> None:
            try:
                before()
            finally:
                holders.clear()
                if ghost() is None:  # nobody else held it
                    self._is_over.set()

        threading.Thread(target=destroy, name="bft-drop-group", daemon=True).start()

    def is_over(self, within_s: float) -> bool:
        """Whether its threads have ended, waiting that long."""
        return self._is_over.wait(within_s)


class Gloo:
    """Gloo's collectives: sockets and the host's memory; control messages always go here."""

    name = "gloo"

    def __init__(self, pg: Any) -> None:
        self.pg = pg
        self._ending = BackendTeardown()

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Start to add up a tensor of all members, in place."""
        return self.pg.allreduce([tensor])

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Start to bring the tensor of rank ``root`` to all."""
        return self.pg.broadcast([tensor], broadcast_options(root))

    def abort(self) -> None:
        """Close the sockets: it is what lets peers that wait for us fail at once."""
        self.pg.abort()

    def close(self) -> None:
        """Abort, and join gloo's threads aside."""
        if self.pg is None:
            return
        self.abort()
        last, self.pg = [self.pg], None
        self._ending.begin(last)

    def is_gone(self, within_s: float) -> bool:
        """Whether its threads have ended, waiting that long: no collective writes any more."""
        return self._ending.is_over(within_s)


def broadcast_options(root: int) -> BroadcastOptions:
    """Return what torch's back ends want to know of a broadcast."""
    options = BroadcastOptions()
    options.rootRank = root
    return options


def settle(work: CollectiveWork, abandoned: Callable[[], bool]) -> Broken | None:
    """Wait until a collective is done; None when it succeeded.

    A wait that times out leaves the collective running, so waiting in slices costs
    nothing while it runs and lets us go as soon as ``abandoned`` says so.
    """
    while True:
        was_complete = work.is_completed()
        try:
            work.wait(WAIT_SLICE)
        except RuntimeError as problem:
            if _is_of_a_signal(problem):
                raise
            # Only the text: the traceback would keep the group's sockets open, and
            # with them the peers waiting.
            reason = words_of(problem)
            is_over = was_complete or isinstance(problem, ExpiredError)
        else:
            return None
        if is_over:
            return Broken(reason=reason)
        if abandoned():
            return Broken(reason=LEFT_BEHIND)


def words_of(problem: RuntimeError) -> str:
    """Return what gloo says of a failure, without its source files, advice and wishes."""
    first = str(problem).partition("\n")[0]
    return _GLOO_PLACE.sub("", first).partition(" This is typically ")[0].strip()[:300]


def _is_of_a_signal(problem: RuntimeError) -> bool:
    """Whether a signal handler of the script raised it during our wait: not the collective's."""
    trace = problem.__traceback__
    trace = None if trace is None else trace.tb_next  # the first is our own
    if trace is None:
        return False
    handlers = {getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()}
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
