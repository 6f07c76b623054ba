"""Reads from file systems that answer with errors for a while: a server that boots, a lost mount.

A checkpoint that cannot be read now is not one that is damaged: a training that began without it
would do its work again, and remove it. Used by the readers of all runtimes. Standard library only.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from bftrainer.elastic.errors import ElasticError

T = TypeVar("T")
log = logging.getLogger("bftrainer.elastic")

PATIENCE_S = 20.0  # less than the time-out of a group, whose members wait
PAUSE_S = 0.5
# nfs(5): of soft mounts, of files whose server forgot them; errno(3).
_PASSING = frozenset(
    {errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN}
)


def patiently(read: Callable[[], T], place: Path) -> T:
    """Return what ``read`` returns, calling it again while the file system is in trouble.

    Raises:
        ElasticError: BFT-1343, when that lasts.
        Exception: whatever else ``read`` raises.
    """
    ends_s = time.monotonic() + PATIENCE_S
    is_told = False
    while True:
        try:
            return read()
        except OSError as problem:
            if problem.errno not in _PASSING:
                raise
            why = problem.strerror or str(problem)
        if time.monotonic() >= ends_s:
            raise ElasticError(
                "BFT-1343",
                f"The file system does not let {place} be read ({why}), and without it the training"
                " would begin anew.",
                "It is tried again. Check the mount on this node; remove the file if only it is"
                " damaged.",
            )
        if not is_told:
            log.warning("BFT-1343: cannot read %s: %s; tried again", place, why)
        is_told = True
        time.sleep(PAUSE_S)
