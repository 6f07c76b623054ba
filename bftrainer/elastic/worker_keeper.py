"""Keeps one worker: the process between it and whoever ordered it.

The keeper adopts what the worker's descendants leave behind. When the worker has ended, it kills
and reaps all of them and removes their files, before anybody is told. It has no other work. The
worker dies with its keeper, and the keeper ends the worker when its own parent has died. Used by
``template``. Standard library only.
"""

from __future__ import annotations

import os
import signal

from bftrainer.elastic.descendants import sweep
from bftrainer.elastic.worker import die_with_parent

LAST_S = 5.0  # for processes that were killed to end; some wait for a file system
NOT_OURS = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def keep(worker: int, parent: int) -> tuple[int, set[int]]:
    """Wait for the worker, a child of ours, to end; end all that it leaves.

    Call ``descendants.adopt`` before it is started.

    Args:
        worker: its pid, which is also a process group.
        parent: the pid of our parent.

    Returns:
        Its status, ``-N`` for signal ``N``, and the pids of all that have ended with it.
    """

    def told(_signum: int, _frame: object) -> None:
        if os.getppid() != parent:  # else the signal is for the whole pilot: the worker has it, too
            kill_group(worker)

    for number in NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, told)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        kill_group(worker)
    while True:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        if ended is not None and ended.si_pid == worker:
            break
        if ended is not None:
            os.waitpid(ended.si_pid, 0)  # adopted, and has ended by itself
    kill_group(worker)  # before it is reaped: its pid is not reused until then
    _, status = os.waitpid(worker, 0)
    return os.waitstatus_to_exitcode(status), {worker} | sweep(limit_s=LAST_S)


def kill_group(pid: int) -> None:
    """SIGKILL a worker's process group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
