"""Faults of file systems: no byte more fits into one."""

from __future__ import annotations

from typing import Final

from _bench.nemesis.bed import Bed
from _bench.nemesis.schedule import HOME, Fault
from tests.support.hosts import HostError
from tests.support.hosts.plan import LOGIN

TRIES: Final = 5  # what is written meanwhile may need more room than was used


class Disks:
    """Fills file systems and makes room again."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed

    def begin(self, fault: Fault) -> None:
        """Fill it."""
        host, place = self._where(fault)
        for last in range(TRIES):
            try:
                self._bed.cluster.fill(host, place)
            except HostError:
                if last == TRIES - 1:
                    raise
            else:
                return

    def end(self, fault: Fault) -> None:
        """Make room."""
        self._bed.cluster.empty(*self._where(fault))

    def _where(self, fault: Fault) -> tuple[str, str]:
        if fault.target == HOME:
            return self._bed.on(LOGIN), "/home"  # of whichever host: it is one
        host, _, place = fault.target.partition(":")
        return host, place
