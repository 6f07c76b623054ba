"""Hosts whose GPUs are lent one by one: what trainers of each width could have of them.

Takes a validated Problem, returns its nodes by what they can be used for; ``milp.pool`` makes of it
what the solver reads. A *kind* is a class of nodes together with a width: units of one kind are
alike. A trainer may have units of the kinds of its width only, so trainers of different widths
compete only for free GPUs and for parts that are a whole host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from milp.problem import ProblemNode, ProblemTrainer

WHOLE = 0  # the width that stands for a whole host


class UnitKind(NamedTuple):
    """Units that are alike."""

    eligibility: str
    width: int  # GPUs; WHOLE: whole hosts


class PartKind(NamedTuple):
    """Parts with a pilot that are alike, or nodes that are whole hosts."""

    eligibility: str
    width: int  # GPUs; WHOLE: a node without a host
    is_full: bool  # all GPUs of its host: it serves trainers of whole hosts, too

    def serves(self, width: int) -> bool:
        """Return whether one of them is a unit of this width."""
        if width == WHOLE:
            return self.is_full
        return self.width == width


class FreeHost(NamedTuple):
    """The GPUs of one class that are free on a host."""

    host: str
    eligibility: str
    host_width: int
    names: list[str]  # of the free GPUs, in the order of the problem

    def is_whole(self) -> bool:
        """Return whether nothing of the host is in use."""
        return len(self.names) == self.host_width

    def most(self, width: int) -> int:
        """Return how many units of a width its GPUs make."""
        if width == WHOLE:
            return int(self.is_whole())
        return len(self.names) // width


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """Hosts with equally many GPUs of one class free."""

    n_free: int
    is_whole: bool
    n_hosts: int

    def most(self, width: int) -> int:
        """Return how many units of a width one of these hosts makes."""
        if width == WHOLE:
            return int(self.is_whole)
        return self.n_free // width


@dataclass(frozen=True, kw_only=True, eq=False)
class HostsView:
    """The nodes by what they can be used for, and the kinds that some trainer accepts."""

    kinds: tuple[UnitKind, ...]  # [k]
    parts: Mapping[PartKind, Sequence[str]]  # names
    free: Sequence[FreeHost]
    part_of: Mapping[str, PartKind]  # name -> what it is, of all but free GPUs

    @cached_property
    def groups(self) -> dict[str, list[HostGroup]]:
        """Hosts with free GPUs by class, those alike together."""
        counts = Counter([(h.eligibility, len(h.names), h.is_whole()) for h in self.free])
        groups: dict[str, list[HostGroup]] = {}
        for (eligibility, n_free, is_whole), n_hosts in sorted(counts.items()):
            group = HostGroup(n_free=n_free, is_whole=is_whole, n_hosts=n_hosts)
            groups.setdefault(eligibility, []).append(group)
        return groups

    def index(self) -> dict[UnitKind, int]:
        """Return k by kind."""
        return {kind: k for k, kind in enumerate(self.kinds)}

    def classes(self) -> list[str]:
        """Return the classes of its kinds, in their order."""
        return list(dict.fromkeys([kind.eligibility for kind in self.kinds]))

    def widths_of(self, eligibility: str) -> list[int]:
        """Return the widths of a class that some trainer accepts, ascending."""
        return sorted([kind.width for kind in self.kinds if kind.eligibility == eligibility])

    def carvable(self, eligibility: str) -> list[int]:
        """Return those of them that its free GPUs make at least one unit of."""
        widths = self.widths_of(eligibility)
        return [width for width in widths if self.most_carved(UnitKind(eligibility, width))]

    def most_carved(self, kind: UnitKind) -> int:
        """Return how many units of a kind the free GPUs make, were there no other kind."""
        groups = self.groups.get(kind.eligibility, [])
        return sum([group.n_hosts * group.most(kind.width) for group in groups])

    def ready(self, kind: UnitKind) -> tuple[str, ...]:
        """Return the names of the nodes that are one unit of a kind each."""
        ready_names: list[str] = []
        for part, names in self.parts.items():
            if part.eligibility == kind.eligibility and part.serves(kind.width):
                ready_names += names
        return tuple(ready_names)

    def contended(self, eligibility: str) -> list[PartKind]:
        """Return the parts that trainers of whole hosts and those of their width both want."""
        widths = self.widths_of(eligibility)
        if WHOLE not in widths:
            return []
        parts: list[PartKind] = []
        for width in widths:
            part = PartKind(eligibility, width, is_full=True)
            if width != WHOLE and self.parts.get(part):
                parts.append(part)
        return parts

    def is_coupled(self, eligibility: str) -> bool:
        """Return whether kinds of a class compete for the same GPUs."""
        return len(self.carvable(eligibility)) > 1 or bool(self.contended(eligibility))

    def of_kinds(self, kinds: Sequence[UnitKind]) -> HostsView:
        """Return the view of trainers that want some of the kinds only."""
        view = HostsView(kinds=tuple(kinds), parts=self.parts, free=self.free, part_of=self.part_of)
        vars(view)["groups"] = self.groups
        return view


def view_hosts(nodes: Iterable[ProblemNode], trainers: Sequence[ProblemTrainer]) -> HostsView:
    """Sort the nodes, one pass; kinds are those of which there is a unit and a trainer for it."""
    parts: dict[tuple[str, int, bool], list[str]] = {}
    free: dict[tuple[str, str], FreeHost] = {}
    names_before: list[str] = []  # of the free host before: its GPUs are side by side as a rule
    host_before, class_before = "", ""
    for node in nodes:
        host = node.host
        if not host:
            parts.setdefault((node.eligibility, WHOLE, True), []).append(node.name)
        elif node.has_pilot:
            is_full = node.width == node.host_width
            parts.setdefault((node.eligibility, node.width, is_full), []).append(node.name)
        elif host == host_before and node.eligibility == class_before:
            names_before.append(node.name)
        else:
            host_before, class_before = host, node.eligibility
            free_host = free.get((host, class_before))
            if free_host is None:
                free_host = FreeHost(host, class_before, node.host_width, [])
                free[host, class_before] = free_host
            names_before = free_host.names
            names_before.append(node.name)
    names_of_parts: dict[PartKind, list[str]] = {}
    part_of: dict[str, PartKind] = {}
    for key, names in sorted(parts.items()):
        part = PartKind(*key)
        names_of_parts[part] = names
        part_of.update(dict.fromkeys(names, part))
    view = HostsView(kinds=(), parts=names_of_parts, free=list(free.values()), part_of=part_of)
    return view.of_kinds(_kinds_of(view, trainers))


def _kinds_of(view: HostsView, trainers: Sequence[ProblemTrainer]) -> list[UnitKind]:
    """Return the kinds that some trainer accepts and of which there is a unit, by width."""
    classes = dict.fromkeys([part.eligibility for part in view.parts])
    classes |= dict.fromkeys(view.groups)
    kinds: list[UnitKind] = []
    for width in sorted({trainer.width for trainer in trainers}):
        accepted_classes: set[str] = set()
        for trainer in trainers:
            if trainer.width == width:
                accepted_classes.update(trainer.eligible or classes)
        for eligibility in classes:
            kind = UnitKind(eligibility, width)
            if eligibility in accepted_classes and (view.ready(kind) or view.most_carved(kind)):
                kinds.append(kind)
    return kinds


def usable_as(node: ProblemNode, width: int) -> bool:
    """Return whether a node is one unit of a width by itself."""
    if width == WHOLE:
        return not node.host or (node.has_pilot and node.width == node.host_width)
    return bool(node.host) and node.has_pilot and node.width == width
