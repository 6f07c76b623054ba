"""What an innocent notices: how long the socket takes to answer, and the nodes it trains on."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from bftrainer.api.client import Client
from bftrainer.model.errors import BftError

PAUSE_S = 0.25
PATIENCE_S = 20.0


@dataclass(slots=True)
class Seen:
    """Samples of one span of time."""

    answers_s: list[float] = field(default_factory=list)
    unanswered: int = 0
    node_seconds: float = 0.0
    span_s: float = 0.0
    steps: int = 0

    @property
    def nodes(self) -> float:
        """Mean number of nodes the innocent trainer trained on."""
        return self.node_seconds / self.span_s if self.span_s else 0.0


class Probe:
    """Asks for one trainer every quarter of a second."""

    def __init__(self, socket_path: Path, trainer_id: str) -> None:
        self._client = Client(socket_path, timeout_s=PATIENCE_S)
        self._trainer_id = trainer_id
        self._stopping = threading.Event()

    def watch(self, for_s: float) -> Seen:
        """Watch so long."""
        seen = Seen()
        began_s = at_s = time.monotonic()
        nodes, first_step = self._look(seen)
        last_step = first_step
        while at_s < began_s + for_s:
            time.sleep(PAUSE_S)
            now_s = time.monotonic()
            seen.node_seconds += nodes * (now_s - at_s)
            at_s = now_s
            nodes, last_step = self._look(seen)
        seen.span_s = at_s - began_s
        seen.steps = last_step - first_step
        return seen

    def _look(self, seen: Seen) -> tuple[int, int]:
        asked_s = time.monotonic()
        try:
            view = self._client.trainer(self._trainer_id)
        except BftError:
            seen.unanswered += 1
            seen.answers_s.append(PATIENCE_S)
            return 0, 0
        seen.answers_s.append(time.monotonic() - asked_s)
        return len(view.observed_nodes), view.record.progress.step


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
