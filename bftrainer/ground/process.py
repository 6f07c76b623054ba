"""This process among those of its host: its name, and the parent with which it ends.

Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # prctl(2)


def own_name() -> str:
    """Return the host's name and the process id, "n1-4711"; unique among running processes."""
    return f"{os.uname().nodename.replace('/', '_')}-{os.getpid()}"


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the thread that started us ends; 0: no longer.

    Raises:
        OSError: the kernel refuses it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
