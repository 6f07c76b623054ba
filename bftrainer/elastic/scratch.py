"""Per-worker directories for the temporary files of ``multiprocessing``.

Workers end by ``os._exit`` or a signal, together with the children that load their data, so
``multiprocessing`` does not clean up and every worker would leave a directory in the node's
temporary directory. So each worker gets one that others know and remove: its keeper, or the agent
where that was killed, too. Called by ``template`` and the agent. Standard library only.

A process id is unique on its host only, and hosts that boot alike have the same ones. Standard
library only.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Collection
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the kernel has it
_OF_TORCH = re.compile(r"torch_(\d{1,10})_\d+_\d+\Z", re.ASCII)  # the first number is a pid


class Scratch:
    """The directories of one template's workers, by pid."""

    def __init__(self) -> None:
        # Not tempfile.gettempdir(): it caches our directory, while a trainer may set its own.
        # Short, because paths of Unix sockets below it are limited to 107 bytes.
        self._base = Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - 0700, below
        self._prefix = f"bft-{secrets.token_hex(4)}-"

    def of(self, pid: int) -> Path:
        """Return the directory of a worker; it may not exist."""
        return self._base / f"{self._prefix}{pid}"

    def use(self, pid: int) -> None:
        """In the worker: use its directory, here and in children; created on demand."""
        own = self.of(pid)

        def get_temp_dir() -> str:
            own.mkdir(mode=0o700, exist_ok=True)
            return str(own)

        util.get_temp_dir = get_temp_dir


def remove(directory: Path, pids: Collection[int]) -> None:
    """Remove a worker's directory, and what processes that were killed left in shared memory.

    These are files of torch. Each is named after the process that made it and unlinked at once,
    unless that is killed between the two.
    """
    shutil.rmtree(directory, ignore_errors=True)
    remove_shared(pids)


def remove_shared(pids: Collection[int]) -> None:
    """Remove torch's files in shared memory that processes of ours with these pids made."""
    with suppress(OSError):
        for file in SHARED_MEMORY.iterdir():
            named = _OF_TORCH.match(file.name)
            with suppress(OSError):
                if named and int(named[1]) in pids and file.lstat().st_uid == os.getuid():
                    file.unlink()


def own_name() -> str:
    """Return the host's name and the process id, "n1-4711"; unique among running processes."""
    return f"{os.uname().nodename.replace('/', '_')}-{os.getpid()}"
