"""What an innocent notices: how long the socket takes to answer, and the nodes it trains on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bftrainer.api.client import Client
from bftrainer.model.errors import BftError

PAUSE_S = 0.25
PATIENCE_S = 20.0
STILL_S = 4.0  # workers report their step every second or two


@dataclass(slots=True)
class Seen:
    """Samples of one span of time."""

    answers_s: list[float] = field(default_factory=list)
    unanswered: int = 0
    node_seconds: float = 0.0
    began_s: float = 0.0  # since the epoch
    span_s: float = 0.0


class Probe:
    """Asks for one trainer every quarter of a second."""

    def __init__(self, socket_path: Path, trainer_id: str) -> None:
        self._client = Client(socket_path, timeout_s=PATIENCE_S)
        self._trainer_id = trainer_id
        self._step, self._moved_s = -1, 0.0

    def watch(self, is_over: Callable[[float, int], bool]) -> Seen:
        """Watch until it is over, by the seconds since the begin and the nodes that make steps."""
        sight = Seen(began_s=time.time())
        began_s = at_s = time.monotonic()
        nodes = self._look(sight)
        while not is_over(at_s - began_s, nodes if at_s < self._moved_s + STILL_S else 0):
            time.sleep(PAUSE_S)
            now_s = time.monotonic()
            sight.node_seconds += nodes * (now_s - at_s)
            at_s = now_s
            nodes = self._look(sight)
        sight.span_s = at_s - began_s
        return sight

    def _look(self, seen: Seen) -> int:
        asked_s = time.monotonic()
        try:
            view = self._client.trainer(self._trainer_id)
        except BftError:
            seen.unanswered += 1
            seen.answers_s.append(PATIENCE_S)
            return 0
        seen.answers_s.append(time.monotonic() - asked_s)
        if view.record.progress.step != self._step:
            self._step, self._moved_s = view.record.progress.step, time.monotonic()
        return len(view.observed_nodes)


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
