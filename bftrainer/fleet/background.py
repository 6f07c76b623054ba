"""Work of the daemon beside its loops; what fails in it is logged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable

LOG = logging.getLogger("bftrainer.daemon")


class Background:
    """The tasks under way, so that none of them is collected before its end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[None]] = set()

    def run(self, work: Awaitable[None]) -> None:
        """Start work and return; call it in the event loop."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            LOG.error("background work failed", exc_info=task.exception())
