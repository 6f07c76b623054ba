"""The checkpoint directory of one trainer: files are written aside, failures are told.

Each file is reported as ``Saved``. When a write fails, training goes on and the next checkpoint is
tried in its turn; until one is complete the daemon repeats the failure reported last. For every
runtime, hence without torch. Used by ``writer``, ``horovod`` and ``mpi``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bftrainer.elastic.process.control import Control
from bftrainer.ground import fence, files
from bftrainer.ground.fence import Fence
from bftrainer.ground.protocol import Saved, Unsaved

log = logging.getLogger("bftrainer.elastic")

SLOW_S = 30.0  # for one checkpoint, ...
TIMES = 3.0  # ... or so many times as long as the last one took


@contextmanager
def telling(control: Control, directory: Path, usual_s: float = 0.0) -> Iterator[None]:
    """Tell an ``OSError`` of the block instead of raising it, and a block that does not end."""
    limit_s = max(SLOW_S, TIMES * usual_s)
    cause = f"a write to {directory} has not ended after {limit_s:.0f} s"
    timer = threading.Timer(limit_s, _tell, (control, cause))
    timer.daemon = True
    timer.start()
    try:
        yield
    except OSError as problem:
        _tell(control, f"{problem.strerror or problem} in {directory}")
    finally:
        timer.cancel()


def _tell(control: Control, cause: str) -> None:
    text = (
        f"BFT-1342: No checkpoint is being completed: {cause}. Training goes on; what it does since"
        " the last checkpoint is lost if all its nodes go."
    )
    log.warning("%s", text)
    control.send(Unsaved(cause=text))


class CheckpointDisk:
    """The checkpoint directory of one trainer, if it has one; for every runtime."""

    def __init__(self, control: Control, directory: str) -> None:
        self.directory = Path(directory) if directory else None
        self._control = control
        self._thread: threading.Thread | None = None
        self._wall_s = 0.0  # for which the last one was written

    def is_busy(self) -> bool:
        """Return whether a file is being written."""
        return self._thread is not None and self._thread.is_alive()

    def aside(self, work: Callable[[], object]) -> None:
        """Work on the directory in a thread; failures are told."""
        directory = self.directory
        if directory is None:
            return

        def run() -> None:
            with telling(self._control, directory, self._wall_s):
                work()

        self._thread = threading.Thread(target=run, name="bft-checkpoint", daemon=True)
        self._thread.start()

    def now(self, work: Callable[[], object]) -> None:
        """Work on the directory after the thread has ended; failures are raised."""
        if self._thread is not None:
            self._thread.join()
        work()

    def write(
        self,
        parts: Iterable[bytes | memoryview],
        writer: Fence,
        *,
        step: int,
        samples: int,
        layout: int,
    ) -> bool:
        """Write a file, remove those that it supersedes and report it.

        Returns whether it was written: another writer may hold the directory.

        Raises:
            OSError: the file system refuses.
        """
        if self.directory is None:
            return False
        began_s = time.monotonic()
        path = fence.path_for(self.directory, step, writer.generation)
        if not fence.claim(self.directory, writer):
            return False
        fence.write_whole(path, parts)
        files.prune(self.directory, path, layout)
        self._wall_s = wall_s = time.monotonic() - began_s
        generation, place = writer.generation, str(path)
        self._control.send(
            Saved(generation=generation, step=step, samples=samples, path=place, wall_s=wall_s)
        )
        return True
