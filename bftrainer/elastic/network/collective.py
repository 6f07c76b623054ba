"""The collectives that a generation needs of a back end, and waits that can be abandoned.

``Collective`` is gloo's; the one for GPUs is in ``device``. A collective in progress is a
``CollectiveWork``; ``settle`` waits for it in slices, so that it can be abandoned at any moment.
Used by ``group``, ``buckets`` and ``state_transfer``.

``AbandonableCall`` runs any other blocking action in a thread. Its result is the action's outcome,
or ``Broken`` if a newer generation came first. Used by ``group``, ``horovod`` and ``mpi``, whose
programs need no torch: only ``Collective`` imports it.
"""

from __future__ import annotations

import re
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from bftrainer.elastic.process.control import Control
from bftrainer.elastic.process.side_threads import start_aside

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

GROUP_TIMEOUT_S = 30.0  # last resort: the control plane notices long before
LEFT_BEHIND = "abandoned for a newer generation"
WAIT_SLICE = timedelta(milliseconds=20)
_GLOO_PLACE = re.compile(r"^\[[^\]]{1,200}\.(?:cc|cpp|h):\d{1,6}\] ?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A group that did not form, or a collective that did not succeed."""

    reason: str


class AbandonableCall(Generic[T]):
    """A blocking action, started at once in its own thread."""

    def __init__(self, control: Control, action: Callable[[], T]) -> None:
        self._control = control
        self._outcome: Future[T | Broken] = Future()
        start_aside(self._run, action, name="bft-side")

    def _run(self, action: Callable[[], T]) -> None:
        try:
            self._outcome.set_result(action())
        except RuntimeError as problem:
            self._outcome.set_result(Broken(reason=str(problem).partition("\n")[0][:300]))
        except Exception as problem:  # noqa: BLE001 - raised again in wait, by the caller
            self._outcome.set_exception(problem)
        self._control.notify()

    @property
    def is_done(self) -> bool:
        """Return whether the action has ended."""
        return self._outcome.done()

    def wait(
        self, abandoned: Callable[[], bool], timeout_s: float = 2 * GROUP_TIMEOUT_S
    ) -> T | Broken:
        """Return the outcome; stop waiting as soon as ``abandoned`` is true."""
        self._control.wait_until(lambda: self.is_done or abandoned(), timeout_s)
        if self.is_done:
            return self._outcome.result()
        return Broken(reason=LEFT_BEHIND)

    def forgo(self, discard: Callable[[T], object]) -> None:
        """Discard the outcome, now or when the action ends."""

        def end(outcome: Future[T | Broken]) -> None:
            if outcome.exception() is not None:
                return
            result = outcome.result()
            if not isinstance(result, Broken):
                discard(result)

        self._outcome.add_done_callback(end)


class ExpiredError(RuntimeError):
    """A collective has not ended within its time limit."""


class CollectiveWork(Protocol):
    """A collective in progress."""

    def is_completed(self) -> bool:
        """Return whether it has ended, with or without success; it no longer uses its tensor."""

    def wait(self, timeout: timedelta) -> object:
        """Wait up to ``timeout``; the collective continues if that was too short.

        Raises:
            ExpiredError: its time limit has passed.
            RuntimeError: it failed, or has not ended yet.
        """


class Collective:
    """The collectives of one generation. All members start the same ones in the same order.

    Here they are gloo's, over sockets and host memory; control messages always use them.
    """

    name = "gloo"
    _aborts_slowly = False

    def __init__(self, pg: Any) -> None:
        from bftrainer.elastic.script import torch_compat  # noqa: PLC0415 - imports torch

        self.pg, self._compat = pg, torch_compat
        self._is_over = threading.Event()

    def all_reduce(self, tensor: torch.Tensor) -> Any:
        """Start to sum a tensor over all members, in place; return a ``CollectiveWork``."""
        return self._start(lambda: self.pg.allreduce([tensor]))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Any:
        """Start to broadcast rank ``root``'s tensor."""
        return self._start(lambda: self._compat.broadcast(self.pg, tensor, root))

    def _start(self, start: Callable[[], Any]) -> Any:
        return start()

    def close(self) -> None:
        """Abort and free everything, without waiting: its threads take up to 80 ms to end."""
        if self.pg is None:
            return
        if not self._aborts_slowly:
            # Members that wait for us fail, or abandon what they wait for.
            self._compat.abort(self.pg)
        holders, self.pg = [self.pg], None
        ghost = weakref.ref(holders[0])

        def destroy() -> None:
            try:
                if self._aborts_slowly:
                    self._compat.abort(holders[0])
            finally:
                holders.clear()
                if ghost() is None:  # no other reference was left
                    self._is_over.set()

        start_aside(destroy, name="bft-drop-group")

    def is_gone(self, within_s: float) -> bool:
        """Return whether no tensor can be written to any more; wait up to ``within_s`` for that."""
        return self._is_over.wait(within_s)


def settle(work: CollectiveWork, abandoned: Callable[[], bool]) -> Broken | None:
    """Wait until a collective is done or ``abandoned`` is true; None when it succeeded.

    A wait that times out leaves the collective running, so waiting in slices is free.
    """
    while True:
        was_complete = work.is_completed()
        try:
            work.wait(WAIT_SLICE)
        except RuntimeError as problem:
            if _is_of_a_signal(problem):
                raise
            # Only the text: a traceback would keep the group's sockets open, and its peers
            # waiting.
            reason = words_of(problem)
            is_over = was_complete or isinstance(problem, ExpiredError)
        else:
            return None
        if is_over:
            return Broken(reason=reason)
        if abandoned():
            return Broken(reason=LEFT_BEHIND)


def words_of(problem: RuntimeError) -> str:
    """Return gloo's message of a failure, without source file and advice."""
    line, _, _ = str(problem).partition("\n")
    text, _, _ = _GLOO_PLACE.sub("", line).partition(" This is typically ")
    return text.strip()[:300]


def _is_of_a_signal(problem: RuntimeError) -> bool:
    """Return whether a signal handler of the script raised it during our wait."""
    trace = problem.__traceback__
    if trace is not None:
        trace = trace.tb_next  # the first frame is ours
    if trace is None:  # most waits have only taken too long
        return False
    handlers = {getattr(signal.getsignal(n), "__code__", None) for n in signal.valid_signals()}
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
