"""The pace at which a worker's reports go to the daemon, whatever its script does.

A script may report in every step, or in an endless loop. Each ``Reported`` repeats the last reports
of the training, so the newest one stands for those before it: at most one is sent each ``EVERY_S``,
or one for every ``MAX_REPORTS`` new reports. None is left out, and whatever else the worker says
comes after what it reported before. Owned by ``trainers.agent.link``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bftrainer.fleet.wire.messages import WorkerExited, WorkerSaid
from trainers.agent.workers import Said

EVERY_S: Final = 0.25
_Position = tuple[int, int, int]


class LastSent(NamedTuple):
    """When a worker's reports were sent last, and the position of the last of them."""

    at_s: float
    newest: _Position | None


class Pacer:
    """Holds back reports of workers that were sent some just now."""

    def __init__(
        self, send: Callable[[Said], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._send, self._clock = send, clock
        self._sent: dict[str, LastSent] = {}
        self._held: dict[str, WorkerSaid] = {}
        self._timer: asyncio.TimerHandle | None = None

    def pass_on(self, message: Said) -> None:
        """Send a message now, or soon."""
        if not isinstance(message, WorkerSaid) or message.body["type"] != "Reported":
            self._release(message.worker_id)
            if isinstance(message, WorkerExited):
                self._sent.pop(message.worker_id, None)
            self._send(message)
            return
        worker_id = message.worker_id
        last_sent = self._sent.get(worker_id)
        if last_sent is not None and last_sent.newest not in _positions(message.body):
            self._release(worker_id)  # it has reports that this one does not repeat
            last_sent = self._sent[worker_id]
        if last_sent is None or self._clock() >= last_sent.at_s + EVERY_S:
            self._held.pop(worker_id, None)
            self._send_reports(message)
            return
        self._held[worker_id] = message
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY_S, self.release)

    def release(self) -> None:
        """Send what is held back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for worker_id in list(self._held):
            self._release(worker_id)

    def take(self) -> list[WorkerSaid]:
        """Return what is held back, for another way of sending it."""
        messages = list(self._held.values())
        self._held.clear()
        self.release()
        return messages

    def _release(self, worker_id: str) -> None:
        message = self._held.pop(worker_id, None)
        if message is not None:
            self._send_reports(message)

    def _send_reports(self, message: WorkerSaid) -> None:
        positions = _positions(message.body)
        newest = positions[-1] if positions else None
        self._sent[message.worker_id] = LastSent(self._clock(), newest)
        self._send(message)


def _positions(body: Mapping[str, Any]) -> list[_Position]:
    """Return the positions of the reports in a message, oldest first."""
    reports = body.get("reports", ())
    return [(report["samples"], report["epoch"], report["step"]) for report in reports]
