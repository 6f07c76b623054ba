"""Per-worker directories for the temporary files of ``multiprocessing``.

Workers end by ``os._exit`` or a signal, together with the children that load their data, so
``multiprocessing`` does not clean up and every worker would leave a directory in the node's
temporary directory. So each worker gets one that the template knows and removes. Called by
``template``. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import shutil
from multiprocessing import util
from pathlib import Path


class Scratch:
    """The directories of one template's workers, by pid."""

    def __init__(self) -> None:
        # Not tempfile.gettempdir(): it caches our directory, while a trainer may set its own.
        # Short, because paths of Unix sockets below it are limited to 107 bytes.
        self._base = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - 0700, below
        self._prefix = f"bft-{secrets.token_hex(4)}-"

    def _of(self, pid: int) -> Path:
        return self._base / f"{self._prefix}{pid}"

    def use(self, pid: int) -> None:
        """In the worker: use its directory, here and in children; created on demand."""
        own = self._of(pid)

        def get_temp_dir() -> str:
            own.mkdir(mode=0o700, exist_ok=True)
            return str(own)

        util.get_temp_dir = get_temp_dir

    def remove(self, pid: int) -> None:
        """In the template, when the worker and its process group have ended."""
        shutil.rmtree(self._of(pid), ignore_errors=True)
