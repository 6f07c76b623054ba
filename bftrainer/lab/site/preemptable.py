"""Ordinary preemptable jobs in place of pilots, as a site without bftrainer could run them."""

from __future__ import annotations

import itertools
import random

from bftrainer.lab.site.jobs import Preemptable, SiteJob
from bftrainer.lab.site.machine import Machine

WAITING = 20  # so many are always in the queue
LIMIT_S = 3600.0
SHORTEST_SHARE = 0.2  # of the limit


class PreemptableUsers:
    """Users who always have one-node jobs in the lowest partition; a cancelled one is replaced."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._machine = machine
        self._chance = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._number = itertools.count(1)

    def begin(self) -> None:
        """Submit the first ones now."""
        self._machine.neighbour = self
        for _ in range(WAITING):
            self._submit()

    def submitted(self, job: SiteJob) -> None:
        """It is no news to them."""

    def ended(self, job: SiteJob) -> None:
        """Neither is this."""

    def started(self, mine: Preemptable) -> None:
        """The next one takes its place in the queue."""
        del mine
        self._submit()

    def gone(self, mine: Preemptable, *, is_preempted: bool) -> None:
        """Its user has others in the queue."""

    def _submit(self) -> None:
        run_s = LIMIT_S * self._chance.uniform(SHORTEST_SHARE, 1.0)
        name = f"u{next(self._number):07d}"
        self._machine.submit_preemptable(Preemptable(name=name, limits_s=(LIMIT_S,), run_s=run_s))
