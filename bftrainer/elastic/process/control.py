"""A worker's control thread: receives the agent's messages and sends reports.

``protocol`` lines arrive on a socket inherited from the template. The newest ``Commit`` is kept
for the training loop; ``Prepare`` is answered here without disturbing it; ``Stop`` and the
agent's death end the process. A script run without an agent has no socket: ``current()`` is
then a control that neither sends nor receives.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from bftrainer.elastic.process.store import StoreServer
from bftrainer.ground import protocol
from bftrainer.ground.errors import ElasticError
from bftrainer.ground.protocol import Commit, FromWorker, Prepare, Ready, Stop, WorkerConfig

log = logging.getLogger("bftrainer.elastic")

T = TypeVar("T")
Key = tuple[int, int]  # generation, attempt: unique
BEAT_S = 0.25  # between two heartbeats


def key_of(message: Commit | Prepare) -> Key:
    """Return the key that orders announcements: generation, then attempt."""
    return (message.generation, message.attempt)


class Control:
    """The agent's messages to this worker; shared by two threads."""

    def __init__(self, config: WorkerConfig, channel: socket.socket | None) -> None:
        self.config = config
        self.channel = channel
        self.started_s = time.monotonic()
        self.changed = threading.Condition()
        self.newest: Commit | None = None  # replaced whole, so readable without the lock
        self.is_over = False  # the loops are done: later commits do not concern this worker
        self.was_complete = False  # and were when the script came to them
        self.on_script_end: Callable[[], None] | None = None
        self.on_commit: Callable[[Commit], None] | None = None  # in the control thread
        self.on_neighbour_lost: Callable[[], None] | None = None
        self.report: Callable[[Any], None] | None = None  # of the run in this process
        self._incarnation = config.incarnation
        self._stores: dict[Key, StoreServer] = {}
        self._sending = threading.Lock()
        if channel is not None:
            threading.Thread(target=self._listen, name="bft-control", daemon=True).start()

    @property
    def is_plain(self) -> bool:
        """Return whether the script runs without an agent."""
        return self.channel is None

    # ---- for the training loop ---------------------------------------------------

    def newer_than(self, key: Key) -> Commit | None:
        """Return the newest commit if it comes after ``key``."""
        newest = self.newest
        if newest is not None and key_of(newest) > key:
            return newest
        return None

    def wait_newer(self, key: Key) -> Commit:
        """Block until there is a commit after ``key``."""
        while True:
            if commit := self.wait_until(lambda: self.newer_than(key), 3600.0):
                return commit

    def wait_until(self, condition: Callable[[], T | None], timeout_s: float) -> T | None:
        """Block until ``condition`` is truthy or the time is up; re-checked on change."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not (result := condition()):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self.changed.wait(left_s)
            return result

    def notify(self) -> None:
        """Wake all waiters: something a condition depends on has changed."""
        with self.changed:
            self.changed.notify_all()

    def send(self, message: FromWorker) -> None:
        """Report to the agent, if there is one."""
        if self.channel is None:
            return
        line = protocol.encode(message)
        try:
            with self._sending:
                self.channel.sendall(line)
        except OSError:
            die("the agent is gone", status=1)

    def say_warm(self) -> None:
        """Report that this worker can join without delay."""
        self.send(protocol.Warm(warm_up_s=time.monotonic() - self.started_s))

    def close_stores(self, before: Key) -> None:
        """Drop the stores of generations that no member will form any more."""
        for key in list(self._stores):
            if key < before:
                self._stores.pop(key).close()

    def script_ended(self) -> None:
        """Complete the run if the script left its loops early and ended well.

        Raises:
            ElasticError: BFT-1423, when there was no run, or none of its batches was used.
        """
        if self.on_script_end is not None and not self.is_over:
            self.on_script_end()
        if not self.is_over:
            raise ElasticError(
                "BFT-1423",
                "The script ended without training with bftrainer: it never iterated over the"
                " batches of an elastic Run.",
                "Make its loop elastic as docs/howto/train-pytorch.md shows, or let it checkpoint"
                " as docs/howto/train-command.md says and submit it with --runtime command.",
            )

    # ---- the control thread --------------------------------------------------------

    def _listen(self) -> None:
        if self.channel is None:
            return
        pending = b""
        # Not select(): it fails for descriptors above 1023, and a script may have more.
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        self.send(protocol.Alive())  # the agent expects heartbeats from now on
        while True:
            if not poll.poll(1000.0 * BEAT_S):
                self.send(protocol.Alive())
                continue
            try:
                chunk = self.channel.recv(1 << 16)
            except OSError:
                chunk = b""
            if not chunk:
                os._exit(1)  # the agent died: we no longer hold this node
            *lines, pending = (pending + chunk).split(b"\n")
            if len(pending) > protocol.MAX_LINE_BYTES:
                die("the agent sent a line without end", status=1)
            for line in lines:
                self._handle(line)

    def _handle(self, line: bytes) -> None:
        try:
            message = protocol.decode(line)
        except protocol.ProtocolError as problem:
            log.warning("ignored a message: %s", problem)
            return
        match message:
            case Stop():
                die(f"stopped: {message.reason}", status=0)
            case Prepare():
                self._prepare(message)
            case Commit():
                self._commit(message)
            case _:
                log.warning("ignored a %s: not for a worker", type(message).__name__)

    def _prepare(self, message: Prepare) -> None:
        port = 0
        store = self._stores.get(key_of(message))
        if store is not None:  # the port is sent again to an agent that may not have heard it
            port = store.port
        elif message.open_store and not self.config.local_rank:  # one store per generation
            try:
                store = StoreServer(self.config.address)
            except OSError as problem:  # answered with port 0, which ends this worker
                log.warning("cannot open a store on %s: %s", self.config.address, problem)
            else:
                self._stores[key_of(message)] = store
                port = store.port
        self.send(Ready(generation=message.generation, attempt=message.attempt, store_port=port))

    def _commit(self, message: Commit) -> None:
        if message.incarnation < self._incarnation:
            log.warning("refused a commit of an earlier daemon (%d)", message.incarnation)
            return
        self._incarnation = message.incarnation
        if store := self._stores.get(key_of(message)):
            store.expect(message.token)
        if self.newest is not None and key_of(message) <= key_of(self.newest):
            return
        with self.changed:
            self.newest = message
            self.changed.notify_all()
        if self.on_commit is not None:
            self.on_commit(message)


_current: list[Control] = []


def start(config: WorkerConfig, channel: socket.socket | None) -> Control:
    """Make this process a worker of the agent behind ``channel``; None: there is no agent."""
    _current[:] = [Control(config, channel)]
    return _current[0]


def current() -> Control:
    """Return this process's control; one without a socket if no agent started it."""
    if not _current:
        script = sys.argv[0] if sys.argv else ""
        config = WorkerConfig(trainer_id="", worker_id="local", node="", script=script)
        _current.append(Control(config, None))
    return _current[0]


def is_worker() -> bool:
    """Return whether an agent started this process."""
    return bool(_current) and not _current[0].is_plain


def step_aside() -> None:
    """Give all threads of this process idle priority.

    Freeing the memory of a large model takes the kernel most of a second, which survivors on
    the same node need for their next step. The thread that ends last does it, which may be
    one of the back end's.
    """
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended, or a container forbids it
            os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def die(reason: str, *, status: int) -> NoReturn:
    """Exit at once: no clean-up is certain to end in time."""
    log.warning("worker ends: %s", reason)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _ignore(_signum: int, _frame: object) -> None:
    """Do nothing on SIGTERM: the agent, which got it, too, ends this process in time."""


def leave_end_to_agent(is_left: bool) -> None:
    """Survive SIGTERM, or no longer, unless the script handles it.

    A batch system sends it to all processes of a pilot. A worker that ends amid a collective of
    devices can leave them unusable, so the agent lets it come to a step boundary. Processes that it
    forks end as usual.
    """
    handler: Any = signal.SIG_DFL
    replacement: Any = _ignore
    if not is_left:
        handler, replacement = replacement, handler
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) == handler:
        signal.signal(signal.SIGTERM, replacement)


def _end_as_usual() -> None:
    leave_end_to_agent(False)  # noqa: FBT003 - as above


os.register_at_fork(after_in_child=_end_as_usual)


def take_sigterm() -> None:
    """Replace a SIGTERM handler of the script or its framework by the default action.

    Such handlers save and leave the loop. In a pilot that would complete the run, or outlast the
    hand-over; what is lost without them is the step in hand.
    """
    handler = signal.getsignal(signal.SIGTERM)
    is_ours = handler is _ignore
    if callable(handler) and not is_ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        name = getattr(handler, "__qualname__", type(handler).__name__)
        sys.stderr.write(
            f"bftrainer: SIGTERM belongs to the pilot: the handler {name} is not called\n"
        )


def end_as_loss(reason: str) -> NoReturn:
    """End this process from any thread, counted as a lost node and not as a failure.

    Uses SIGTERM's default action: Python runs a handler of the script in the main thread
    only, which may be the one that hangs.
    """
    log.warning("worker ends as a loss: %s", reason)
    ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)  # SIG_DFL; signal.signal: main thread only
    os.kill(os.getpid(), signal.SIGTERM)
    raise SystemExit  # not reached where SIGTERM is not blocked
