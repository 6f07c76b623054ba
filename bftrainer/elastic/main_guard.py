"""Detects child processes that run the training script again: it has no main guard.

Under the start methods spawn and forkserver of ``multiprocessing`` each child imports the main
module first. A script without ``if __name__ == "__main__"`` trains there again, until Python
refuses to start children of the child; its parent learns only that the child has ended. So the
child leaves a mark with the worker. Standard library only. Used by ``worker`` and ``membership``.
"""

from __future__ import annotations

import multiprocessing
import os
from contextlib import suppress
from pathlib import Path

from bftrainer.elastic.errors import ElasticError

VARIABLE = "BFT_UNGUARDED"  # where a child leaves its mark


class GuardFile:
    """A file without a name, of this worker, that children can reach."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("bft-unguarded")
        os.environ[VARIABLE] = f"/proc/{os.getpid()}/fd/{self._fd}"

    @property
    def is_set(self) -> bool:
        """Return whether a child has run the script as far as its training loop."""
        return os.fstat(self._fd).st_size > 0


def require() -> None:
    """Go on only if this process is not a child that is importing the main module.

    Raises:
        ElasticError: BFT-1428.
    """
    if not getattr(multiprocessing.current_process(), "_inheriting", False):  # as Python asks
        return
    if path := os.environ.get(VARIABLE):
        with suppress(OSError):
            Path(path).write_bytes(b"x")
    raise unguarded()


def unguarded() -> ElasticError:
    """Return BFT-1428."""
    return ElasticError(
        "BFT-1428",
        "Processes that the script starts (a DataLoader's, by the start method spawn or forkserver)"
        " run the script again, because it has no main guard.",
        'Put all but imports and definitions under: if __name__ == "__main__". Or let the loader'
        ' fork: multiprocessing_context="fork".',
    )
