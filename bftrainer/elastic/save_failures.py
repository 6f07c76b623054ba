"""Tells that checkpoints are not written: file systems fill up, hang and answer errors (BFT-1342).

Training goes on, and the next checkpoint is tried in its turn; until one is complete the daemon
repeats what was told last. Used by the writers of all runtimes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bftrainer.elastic.control import Control
from bftrainer.elastic.protocol import Unsaved

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
