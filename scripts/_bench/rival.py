"""What the other systems beside which ``bench_rescale`` measures have in common.

A rival is one job of a few processes on loopback that leave step records. Its driver
starts and ends them; what comes out are ``RivalPause``s. Used by ``torchrun``
and ``torchft``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Self

from _bench.records import History, Recorder, durations
from bftrainer.batch import process
from trainers.agent.start import KEEP_FREED_MEMORY

TIMEOUT_S: Final = 60.0  # no recovery within this counts as this
SNAPSHOT_STEPS: Final = 10
BEFORE_STEPS: Final = 12
MAX_NODES: Final = 4
POLL_S: Final = 0.02
ENVIRONMENT: Final = {
    "OMP_NUM_THREADS": "1",
    **KEEP_FREED_MEMORY,  # as our agents do
    "GLOO_SOCKET_IFNAME": "lo",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalPause:
    """What one transition cost the survivor it cost most."""

    system: str
    kind: str
    pause_s: float
    lost_steps: int = 0  # done again since the last snapshot; not in ``pause_s``
    has_recovered: bool = True


class RivalError(Exception):
    """This job cannot be measured any further; what there is counts."""


class Rival:
    """One job; leaving the context ends every process."""

    name = ""

    def __init__(
        self, directory: Path, script: Path, model: str, note: Callable[[str], None]
    ) -> None:
        self.directory = directory
        self.script = script
        self.model = model
        self.note = note
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.leavers: list[subprocess.Popen[bytes]] = []
        self.recorder = Recorder(directory)
        self.jobs = itertools.count(1)
        self.victims = itertools.cycle(range(MAX_NODES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def run(self, cycles: int, pauses: list[RivalPause]) -> None:
        """Go through the cycles, adding to ``pauses``; a job that is lost is started afresh."""
        for cycle in range(cycles):
            pauses += self.cycle()
            self.note(f"{self.name} cycle {cycle + 1} of {cycles}")

    def cycle(self) -> list[RivalPause]:
        """Go through all transitions once."""
        raise NotImplementedError

    def end(self) -> None:
        """End every process."""
        for child in [*self.processes.values(), *self.leavers]:
            end_tree(child)
        self.processes.clear()
        self.leavers.clear()

    def fresh_records(self, job: str) -> Path:
        """Begin records of their own for a job; returns their directory."""
        records = self.directory / job
        records.mkdir()
        self.recorder = Recorder(records)
        return records

    # ---- what the records say --------------------------------------------------------------

    def of(self, node: str) -> list[History]:
        """Return the processes of a node that have trained, oldest first."""
        histories = [h for h in self.recorder.histories.values() if h.node == node and h.steps]
        return sorted(histories, key=lambda h: h.steps[0].at_s)

    def newest(self, node: str) -> History | None:
        """Return the newest process of a node that has trained."""
        histories = self.of(node)
        return histories[-1] if histories else None

    def by_rank(self) -> list[str]:
        """Return the nodes in rank order."""
        newest = {n: h for n in self.processes if (h := self.newest(n)) is not None}
        return sorted(newest, key=lambda n: newest[n].steps[-1].rank)

    def is_settled(self, size: int) -> bool:
        """Whether all train at that size, long enough to know their usual step."""
        newest = [self.newest(node) for node in self.processes]
        return len(newest) == size and all(
            h is not None
            and len(h.steps) >= BEFORE_STEPS + 2
            and all(s.size == size for s in h.steps[-BEFORE_STEPS:])
            for h in newest
        )

    def wait(self, condition: Callable[[], bool], deadline_s: float) -> bool:
        """Wait until the records say so; False when the deadline comes first."""
        while time.monotonic() < deadline_s:
            self.recorder.poll()
            if condition():
                return True
            time.sleep(POLL_S)
        return False

    def usual_step_s(self, nodes: Iterable[str]) -> float:
        """Return the median step of the newest processes of these nodes."""
        newest = [h for n in nodes if (h := self.newest(n)) is not None]
        return median(v for h in newest for v in durations(h.steps[-20:]))


def end_tree(one: subprocess.Popen[bytes]) -> None:
    """End a process and its children: torchrun gives each a session of its own."""
    workers = []
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text()
        workers = [int(pid) for pid in text.split()]
    process.kill_group(one.pid)
    one.wait()
    for pid in workers:
        process.kill_group(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
