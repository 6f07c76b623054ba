"""Hosts whose GPUs are lent one by one: what trainers of each width could have of them.

Takes a validated Problem, returns its nodes by what they can be used for; ``milp.pool`` makes of it
what the solver reads. A *kind* is a class of nodes together with a width: units of one kind are
alike. A trainer may have units of the kinds of its width only, so trainers of different widths
compete only for free GPUs and for parts that are a whole host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from milp.problem import Problem, ProblemNode, ProblemTrainer

WHOLE = 0  # the width that stands for a whole host


class Kind(NamedTuple):
    """Units that are alike."""

    eligibility: str
    width: int  # GPUs; WHOLE: whole hosts


class PartKind(NamedTuple):
    """Parts with a pilot that are alike."""

    eligibility: str
    width: int  # GPUs
    is_full: bool  # all GPUs of its host: it serves trainers of whole hosts, too


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
class Group:
    """Hosts with equally many GPUs of one class free."""

    n_free: int
    is_whole: bool
    n_hosts: int

    def most(self, width: int) -> int:
        """Return how many units of a width one of these hosts makes."""
        return int(self.is_whole) if width == WHOLE else self.n_free // width


@dataclass(frozen=True, kw_only=True, eq=False)
class HostsView:
    """The nodes by what they can be used for, and the kinds that some trainer accepts."""

    kinds: tuple[Kind, ...]  # [k]
    whole: Mapping[str, Sequence[str]]  # by class: names of nodes that are whole hosts
    parts: Mapping[PartKind, Sequence[str]]  # names
    free: Sequence[FreeHost]

    @cached_property
    def groups(self) -> dict[str, list[Group]]:
        """Hosts with free GPUs by class, those alike together."""
        counts: dict[tuple[str, int, bool], int] = {}
        for one in self.free:
            key = one.eligibility, len(one.names), one.is_whole()
            counts[key] = counts.get(key, 0) + 1
        groups: dict[str, list[Group]] = {}
        for (eligibility, n_free, is_whole), n_hosts in sorted(counts.items()):
            group = Group(n_free=n_free, is_whole=is_whole, n_hosts=n_hosts)
            groups.setdefault(eligibility, []).append(group)
        return groups

    def widths_of(self, eligibility: str) -> list[int]:
        """Return the widths of a class that some trainer accepts, ascending."""
        return sorted([kind.width for kind in self.kinds if kind.eligibility == eligibility])

    def carvable(self, eligibility: str) -> list[int]:
        """Return those of them that its free GPUs make at least one unit of."""
        groups = self.groups.get(eligibility, [])
        return [
            width
            for width in self.widths_of(eligibility)
            if any([group.most(width) for group in groups])
        ]

    def most_carved(self, kind: Kind) -> int:
        """Return how many units of a kind the free GPUs make, were there no other kind."""
        groups = self.groups.get(kind.eligibility, [])
        return sum([group.n_hosts * group.most(kind.width) for group in groups])

    def ready(self, kind: Kind) -> list[str]:
        """Return the names of the nodes that are one unit of a kind each."""
        if kind.width == WHOLE:
            names = list(self.whole.get(kind.eligibility, ()))
            for part, own in self.parts.items():
                if part.eligibility == kind.eligibility and part.is_full:
                    names += own
            return names
        return [
            name
            for is_full in (False, True)
            for name in self.parts.get(PartKind(*kind, is_full), ())
        ]

    def contended(self, eligibility: str) -> list[PartKind]:
        """Return the parts that trainers of whole hosts and those of their width both want."""
        widths = self.widths_of(eligibility)
        if WHOLE not in widths:
            return []
        full = [PartKind(eligibility, width, is_full=True) for width in widths if width != WHOLE]
        return [part for part in full if self.parts.get(part)]

    def is_coupled(self, eligibility: str) -> bool:
        """Return whether kinds of a class compete for the same GPUs."""
        return len(self.carvable(eligibility)) > 1 or bool(self.contended(eligibility))

    def of_kinds(self, kinds: Sequence[Kind]) -> HostsView:
        """Return the view of trainers that want some of the kinds only."""
        view = HostsView(kinds=tuple(kinds), whole=self.whole, parts=self.parts, free=self.free)
        vars(view)["groups"] = self.groups
        return view


def view_hosts(nodes: Iterable[ProblemNode], trainers: Sequence[ProblemTrainer]) -> HostsView:
    """Sort the nodes, one pass; kinds are those of which there is a unit and a trainer for it."""
    whole: dict[str, list[str]] = {}
    parts: dict[PartKind, list[str]] = {}
    free: dict[tuple[str, str], FreeHost] = {}
    for node in nodes:
        eligibility, host = node.eligibility, node.host
        if not host:
            whole.setdefault(eligibility, []).append(node.name)
        elif node.has_pilot:
            part = PartKind(eligibility, node.width, node.width == node.host_width)
            parts.setdefault(part, []).append(node.name)
        else:
            key = host, eligibility
            if key in free:
                free[key].names.append(node.name)
            else:
                free[key] = FreeHost(host, eligibility, node.host_width, [node.name])
    view = HostsView(kinds=(), whole=whole, parts=parts, free=list(free.values()))
    classes = dict.fromkeys([*whole, *(part.eligibility for part in parts), *view.groups])
    wanted: dict[Kind, None] = {}
    for width in sorted({trainer.width for trainer in trainers}):
        accepted = [set(t.eligible) for t in trainers if t.width == width]
        for eligibility in classes:
            if any([not own or eligibility in own for own in accepted]):
                wanted[Kind(eligibility, width)] = None
    return view.of_kinds([k for k in wanted if view.ready(k) or view.most_carved(k)])


def usable_as(node: ProblemNode, width: int) -> bool:
    """Return whether a node is one unit of a width by itself."""
    if width == WHOLE:
        return not node.host or (node.has_pilot and node.width == node.host_width)
    return bool(node.host) and node.has_pilot and node.width == width
