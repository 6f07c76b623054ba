"""Looks once a second how many nodes trainers could have, and writes it down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Self

from _bench.nemesis.bed import Bed
from _bench.nemesis.verdicts import Free
from bftrainer.model.hostlist import expand
from tests.support.hosts import HostError
from tests.support.hosts.plan import CONTROLLER

PAUSE_S: Final = 1.0
COMMAND_S: Final = 5.0
USABLE: Final = {"idle", "mixed", "allocated"}
NODES: Final = ("sinfo", "-hN", "-pbatch", "-o%N %T")
JOBS: Final = ("squeue", "-h", "-pbatch", "-tR,CG", "-o%N")  # ordinary ones; a line for each


class Watch:
    """A thread that counts free nodes.

    A node is free if it has power and network, Slurm calls it usable, and no ordinary job has it.
    None is while the controller has no power or no network, or does not answer: nobody could give
    it to a trainer.
    """

    def __init__(self, bed: Bed, down: Callable[[], frozenset[str]]) -> None:
        self._bed, self._down = bed, down
        self.free: list[Free] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(PAUSE_S):
            at_s = time.time()
            nodes, has_daemon = self._usable() - self._down(), bool(self._bed.keeper.pids())
            self.free.append(Free(at_s=at_s, nodes=len(nodes), has_daemon=has_daemon))

    def _usable(self) -> set[str]:
        if CONTROLLER in self._down() or not self._bed.is_on(CONTROLLER):
            return set()
        usable = {node for node, state in map(str.split, self._asked(*NODES)) if state in USABLE}
        busy = {node for line in self._asked(*JOBS) for node in expand(line)}
        return usable - busy

    def _asked(self, *argv: str) -> list[str]:
        try:
            return self._bed.cluster.run(CONTROLLER, *argv, timeout_s=COMMAND_S).stdout.splitlines()
        except (OSError, HostError):  # it ends just now
            return []
