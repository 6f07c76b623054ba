"""Where a worker and its children keep sockets of ``multiprocessing``, so that it can be removed.

Workers end by ``os._exit`` or a signal, and the children that load their data with them: what
``multiprocessing`` would remove at an ordinary end would stay in the node's temporary
directory, a folder for every worker that ever left. So each has one that the template knows,
and removes. Called by ``template``. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import shutil
from multiprocessing import util
from pathlib import Path


class Scratch:
    """Of all workers of one template, which are told apart by their pids."""

    def __init__(self) -> None:
        # Not tempfile.gettempdir(): it would remember ours where a trainer has its own. And
        # short, for the path of a Unix socket has to fit behind it.
        self._base = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - 0700, below
        self._prefix = f"bft-{secrets.token_hex(4)}-"

    def _of(self, pid: int) -> Path:
        return self._base / f"{self._prefix}{pid}"

    def use(self, pid: int) -> None:
        """In the worker: have it and what it forks use its folder, made when it is needed."""
        own = self._of(pid)

        def get_temp_dir() -> str:
            own.mkdir(mode=0o700, exist_ok=True)
            return str(own)

        util.get_temp_dir = get_temp_dir

    def remove(self, pid: int) -> None:
        """In the template, when the worker and its process group have ended."""
        shutil.rmtree(self._of(pid), ignore_errors=True)
