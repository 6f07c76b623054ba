"""Shares units out among the trainers of one kind: few hosts and few switches for each.

Takes the units that are there for a kind, by host, and how many each trainer needs; called by
``milp.placement.hosts``. The largest need first: a trainer gets units on its own hosts, then behind
its own switches, then of the switch that has enough with fewest to spare, else of that with most.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from milp.problem import ProblemNode


class UnitLot(NamedTuple):
    """Units of one host that are handed out together or one by one."""

    names: list[str]  # of their nodes, unit after unit
    width: int  # nodes of one unit


@dataclass(slots=True, kw_only=True)
class UnitTaker:
    """A trainer that gets units of one kind beside those it keeps."""

    trainer_id: str
    need: int
    hosts: set[str]  # on which it has units
    switches: set[str]  # of these


@dataclass(slots=True)
class _Host:
    """Units of one host."""

    name: str
    switch: _Switch
    lots: list[UnitLot]
    n_units: int = 0

    def take(self, need: int, names: list[str]) -> int:
        """Take up to ``need`` units, whose nodes are added to ``names``; returns how many."""
        n_taken = missing = min(need, self.n_units)
        while missing:
            lot = self.lots.pop()
            n_of_lot = len(lot.names) // lot.width
            if n_of_lot > missing:
                end = missing * lot.width
                names += lot.names[:end]
                self.lots.append(UnitLot(lot.names[end:], lot.width))
                break
            names += lot.names
            missing -= n_of_lot
        self.n_units -= n_taken
        self.switch.total -= n_taken
        if self.n_units and n_taken:
            self.switch.by_count.setdefault(self.n_units, []).append(self)
        return n_taken


@dataclass(slots=True)
class _Switch:
    """Units behind one switch, by host."""

    name: str
    total: int = 0  # units
    hosts: list[_Host] = field(default_factory=list)
    by_count: dict[int, list[_Host]] = field(default_factory=dict)  # some no longer right

    def fill(self, need: int, names: list[str]) -> int:
        """Take up to ``need`` units: of the smallest host that has so many, else of the largest.

        Returns:
            How many units, whose nodes are added to ``names``.
        """
        n_taken = 0
        while n_taken < need and self.total:
            missing = need - n_taken
            counts = [count for count, hosts in self.by_count.items() if hosts]
            sufficient_counts = [count for count in counts if count >= missing]
            count = min(sufficient_counts, default=max(counts))
            host = self.by_count[count].pop()
            if host.n_units == count:
                n_taken += host.take(missing, names)
        return n_taken


class _Switches:
    """Units by switch, and the switches by how many units they have left."""

    def __init__(self, lots: Iterable[UnitLot], nodes: Mapping[str, ProblemNode]) -> None:
        self._by_name: dict[str, _Switch] = {}
        self._hosts: dict[str, _Host] = {}
        for lot in lots:
            node = nodes[lot.names[0]]
            name = node.host or node.name
            host = self._hosts.get(name)
            if host is None:
                switch = self._by_name.get(node.switch)
                if switch is None:
                    switch = self._by_name[node.switch] = _Switch(node.switch)
                host = self._hosts[name] = _Host(name, switch, [])
                switch.hosts.append(host)
            host.lots.append(lot)
            host.n_units += len(lot.names) // lot.width
        for switch in self._by_name.values():
            switch.hosts.sort(key=attrgetter("name"), reverse=True)  # the last is taken first
            for host in switch.hosts:
                switch.total += host.n_units
                switch.by_count.setdefault(host.n_units, []).append(host)
        # As of the last recount: totals by switch, and the same in order.
        self._noted = {switch.name: switch.total for switch in self._by_name.values()}
        self._totals = sorted([(total, name) for name, total in self._noted.items()])
        self._changed = set[str]()  # switches that may have other totals now

    def give(self, taker: UnitTaker) -> list[str]:
        """Return the nodes of what a taker needs: of its hosts, its switches, then of few."""
        names: list[str] = []
        missing = taker.need
        for name in sorted(taker.hosts & self._hosts.keys()):
            if not missing:
                return names
            host = self._hosts[name]
            missing -= host.take(missing, names)
            self._changed.add(host.switch.name)
            if not host.n_units:
                del self._hosts[name]
        for name in sorted(taker.switches & self._by_name.keys()):
            if not missing:
                return names
            missing -= self._by_name[name].fill(missing, names)
            self._changed.add(name)
        while missing:
            self._recount()
            name = self._best(missing)
            missing -= self._by_name[name].fill(missing, names)
            self._changed.add(name)
        return names

    def _best(self, missing: int) -> str:
        """Return the switch that has enough with fewest to spare, else the one with most."""
        totals = self._totals
        index = bisect_left(totals, (missing, ""))
        if index == len(totals):
            largest, _ = totals[-1]
            index = bisect_left(totals, (largest, ""))
        _, name = totals[index]
        return name

    def _recount(self) -> None:
        """Take note of what switches have left; not before it is needed."""
        totals = self._totals
        for name in self._changed:
            total, total_before = self._by_name[name].total, self._noted[name]
            if total != total_before:
                del totals[bisect_left(totals, (total_before, name))]
                self._noted[name] = total
                if total:
                    insort(totals, (total, name))
        self._changed.clear()


def share_out(
    takers: Sequence[UnitTaker],
    lots: Sequence[UnitLot],
    nodes: Mapping[str, ProblemNode],
    assignment: dict[str, str],
) -> None:
    """Give each taker its units; there are as many as they need."""
    if len(takers) == 1:
        for lot in lots:
            assignment.update(dict.fromkeys(lot.names, takers[0].trainer_id))
        return
    switches = _Switches(lots, nodes)
    for taker in sorted(takers, key=lambda taker: (-taker.need, taker.trainer_id)):
        assignment.update(dict.fromkeys(switches.give(taker), taker.trainer_id))
