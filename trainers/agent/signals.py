"""Handles the batch system's signals: blocked, and waited for by a separate thread.

SIGTERM (which comes with SIGCONT) becomes one call of the agent's ``leave``; the process ends
within ``EXIT_LIMIT_S`` even if its event loop is stuck. Where the batch system grants a grace time,
SIGUSR1 is the notice of it (``on_notice``); SIGTERM still follows at its end. Called by
``trainers.agent.__main__``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

LEAVE_SIGNALS = (
    *(signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP),
    signal.SIGUSR2,  # LSF's at the run limit; it kills ten minutes later
)
BLOCKED_SIGNALS = (*LEAVE_SIGNALS, signal.SIGCONT)
IGNORED_BY_PYTHON = {signal.SIGPIPE, signal.SIGXFSZ}  # and restored for what it starts
EXIT_LIMIT_S = 0.04
# For workers with collectives on devices to come to a step boundary. An agent that was told to
# leave is cancelled with force after 2 s (``fleet.pilots``); a usual KillWait is longer.
DEVICE_LIMIT_S = 1.5


def heed_signals() -> None:
    """Undo that signals are ignored, as under ``nohup`` or in a shell's background job.

    Programs that we start would inherit it: a worker could not be interrupted, and the status of
    its children would be lost.
    """
    for number in signal.valid_signals() - IGNORED_BY_PYTHON:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def block_signals() -> None:
    """Block our signals in this thread and all threads it starts; call this first.

    Children inherit the mask; the template resets it for itself and its workers.
    """
    heed_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)


class SignalWaiter:
    """A thread that turns the first signal to leave into one call of ``on_leave``.

    ``on_overdue`` is called ``EXIT_LIMIT_S`` later, and what ``patience_s`` adds, and must end the
    process. By default both exit at once; the agent replaces them when it has something to clean
    up.
    """

    def __init__(self) -> None:
        self.on_leave: Callable[[], object] = _exit
        self.on_overdue: Callable[[], object] = _exit
        self.on_notice: Callable[[], object] | None = None  # of a grace time; None: leave at once
        self.patience_s: Callable[[], float] = float
        self.heard_s: float | None = None  # when the signal to leave came, wall clock
        self._thread = threading.Thread(target=self._wait, name="signals", daemon=True)

    def start(self) -> None:
        """Block our signals in this thread and wait for them in another."""
        block_signals()
        self._thread.start()

    def _wait(self) -> None:
        while True:
            signum = signal.sigwaitinfo(BLOCKED_SIGNALS).si_signo
            self.heard_s = time.time()
            if signum == signal.SIGUSR1 and self.on_notice is not None:
                self.on_notice()
            elif signum != signal.SIGCONT:
                break
        try:
            limit_s = EXIT_LIMIT_S + self.patience_s()
            self.on_leave()
            time.sleep(limit_s)
        finally:
            self.on_overdue()


def _exit() -> None:
    os._exit(0)
