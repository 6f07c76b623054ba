"""Faults of hosts and of the network between them: cables, packets that vanish, power."""

from __future__ import annotations

from collections import Counter
from typing import Final

from _bench.nemesis.bed import Bed
from _bench.nemesis.schedule import UNREACHABLE, Fault, Kind
from tests.support.hosts import rules

HEARS_NOTHING: Final = 'iifname != "lo" drop'


class Outages:
    """Cuts hosts off, and switches them off."""

    def __init__(self, bed: Bed) -> None:
        self._bed, self._cluster = bed, bed.cluster
        self._down: Counter[str] = Counter()

    @property
    def down(self) -> frozenset[str]:
        """The hosts without power, or that do not hear others or are not heard."""
        return frozenset(+self._down)

    def begin(self, fault: Fault) -> None:
        """Make it."""
        if fault.kind in UNREACHABLE:
            self._down[fault.target] += 1
        match fault.kind:
            case Kind.POWER:
                self._cluster.off(fault.target)
            case Kind.CUT:
                self._cluster.cut(fault.target)
            case _:
                for host, speaker in self._deaf(fault):
                    self._set(host, fault, *self._dropped(speaker))

    def end(self, fault: Fault) -> None:
        """Undo it."""
        match fault.kind:
            case Kind.POWER:
                self._cluster.on(fault.target)
            case Kind.CUT:
                self._cluster.mend(fault.target)
            case _:
                for host, _ in self._deaf(fault):
                    self._set(host, fault)
        if fault.kind in UNREACHABLE:
            self._down[fault.target] -= 1

    def _deaf(self, fault: Fault) -> list[tuple[str, str]]:
        """Return who does not hear whom; "": anybody."""
        if fault.kind is Kind.DEAF:
            return [(fault.target, "")]
        if fault.kind is Kind.MUTE:
            hosts = self._cluster.plan.hosts
            return [(host, fault.target) for host in hosts if host != fault.target]
        first, second = fault.target.split("+")
        return [(first, second), (second, first)]

    def _dropped(self, speaker: str) -> tuple[str, ...]:
        if not speaker:
            return (HEARS_NOTHING,)
        return rules.from_hosts([self._cluster.plan.address(speaker)])

    def _set(self, host: str, fault: Fault, *lines: str) -> None:
        """Give a host these rules for a fault, in place of those that it has for it."""
        if self._bed.is_on(host):  # rules end with the power
            table = f"{fault.kind}_{fault.target.replace('+', '_')}"
            rules.replace(self._cluster.pid(host), table, *lines)
