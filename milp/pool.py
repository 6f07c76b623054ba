"""The pool as the solver sees it: nodes by class, and the classes that each trainer may have.

Takes a validated Problem; the exact solver, placement and simple policies read it.
Classes that the same trainers accept, all of which mix classes, are one class here.

Where GPUs are lent, "nodes" here are units, and the classes are kinds of units (``milp.hosts``):
a class of nodes and a width. Their counts are what there is of each kind were it the only one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from milp.hosts import WHOLE, FreeHost, HostsView, UnitKind, view_hosts
from milp.problem import Problem, ProblemNode, ProblemTrainer, lends_gpus, names_of, names_within

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Counts by merged class (index k) and by trainer that may run (index j, FCFS)."""

    trainers: tuple[ProblemTrainer, ...]  # the first p_jmax: those that may run
    names: tuple[tuple[str, ...], ...]  # [k]: names of the nodes of class k
    class_of: dict[str, int]  # node name -> k; nodes nobody accepts are missing
    present: tuple[tuple[str, ...], ...]  # [j]: current nodes still in the pool
    held: tuple[tuple[int, ...], ...]  # [j][k]: how many of them are of class k
    accepts: tuple[tuple[bool, ...], ...]  # [j][k]
    mixes: tuple[bool, ...]  # [j]: has nodes of several classes at once, if it likes
    hosts: HostsView | None = None  # where GPUs are lent; ``names`` has ready units only then
    n_units: tuple[int, ...] = ()  # [k]: likewise, ready and made of free GPUs

    def index(self) -> dict[str, int]:
        """Return j by trainer_id."""
        return {trainer.trainer_id: j for j, trainer in enumerate(self.trainers)}

    def counts(self) -> tuple[int, ...]:
        """Nodes per class."""
        return self.n_units or tuple(map(len, self.names))

    def count(self, k: int) -> int:
        """Nodes of a class."""
        return self.n_units[k] if self.n_units else len(self.names[k])

    def largest(self, j: int, k: int, *, extra: int = 0) -> int:
        """Largest size trainer j may take of class k, were there ``extra`` nodes more.

        A trainer that also holds nodes outside class k cannot grow (no migration:
        growing keeps all it has, and a trainer has nodes of one class), only shrink
        to what it holds of k. For one that mixes classes, all it accepts are one
        class here: the answer is the same for each of them.
        """
        if not self.mixes[j]:
            return self.largest_of_one(j, k, extra=extra)
        trainer, accepts = self.trainers[j], self.accepts[j]
        if not accepts[k]:
            return 0
        n_held = n_there = 0  # nodes of all classes that it accepts
        for i, is_accepted in enumerate(accepts):
            if is_accepted:
                n_held += self.held[j][i]
                n_there += self.count(i)
        if n_held == len(self.present[j]):
            return min(trainer.n_max, n_there + extra)
        return min(trainer.n_max, n_held)

    def largest_of_one(self, j: int, k: int, *, extra: int = 0) -> int:
        """The same for a trainer that is to have nodes of class k only, mixing or not."""
        trainer, n_held = self.trainers[j], self.held[j][k]
        if not self.accepts[j][k]:
            return 0
        if n_held == len(self.present[j]):
            return min(trainer.n_max, self.count(k) + extra)
        return min(trainer.n_max, n_held)


def view_pool(problem: Problem, *, is_apart: bool = False) -> PoolView:
    """Count the pool, one pass over nodes and one over current nodes.

    Args:
        problem: validated.
        is_apart: whether kinds that are made of the same GPUs have shares of them, so that any
            sizes within the counts can be placed; otherwise each count is that of all GPUs.
    """
    if lends_gpus(problem):
        pool = _view_units(problem)
        if is_apart:
            pool = replace(pool, n_units=_units_apart(pool))
        return pool
    trainers = problem.trainers[: problem.p_jmax]
    classes = {node.eligibility for node in problem.nodes}
    by_class: dict[str, list[ProblemNode]] = {}
    if len(classes) == 1:  # as a rule, and quicker
        by_class[classes.pop()] = list(problem.nodes)
    else:
        for node in problem.nodes:
            by_class.setdefault(node.eligibility, []).append(node)
    groups, accepting = _merge_classes(by_class, trainers)
    class_of: dict[str, int] = {}
    for k, names in enumerate(groups):
        class_of.update(dict.fromkeys(names, k))
    are_all_accepted = len(class_of) == len(problem.nodes)
    if are_all_accepted:
        in_pool = class_of.__contains__
    else:
        in_pool = set(names_of(problem.nodes)).__contains__
    # ``filter`` with a method of C: every decision pays for this line.
    present = tuple([tuple(filter(in_pool, trainer.current)) for trainer in trainers])
    if len(groups) == 1 and are_all_accepted:
        counts: list[tuple[int, ...]] = [(len(names),) for names in present]
    else:
        counts = [_count(names, class_of, len(groups)) for names in present]
    return PoolView(
        trainers=trainers,
        names=groups,
        class_of=class_of,
        present=present,
        held=tuple(counts),
        accepts=tuple(zip(*accepting, strict=True)) if trainers else (),
        mixes=tuple([trainer.mixes_classes for trainer in trainers]),
    )


def _merge_classes(
    by_class: dict[str, list[ProblemNode]], trainers: tuple[ProblemTrainer, ...]
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[bool, ...], ...]]:
    """Group the nodes by the trainers that accept them, in order of first appearance."""
    groups: dict[tuple[str, tuple[bool, ...]], list[str]] = {}  # names of nodes
    for name, members in by_class.items():
        accepts = tuple([not t.eligible or name in t.eligible for t in trainers])
        if not any(accepts):
            continue
        # Classes that the same trainers accept are one, unless some trainer mixes none.
        accepting = itertools.compress(trainers, accepts)
        group = "" if all(trainer.mixes_classes for trainer in accepting) else name
        groups.setdefault((group, accepts), []).extend(names_of(members))
    if not groups:  # an empty pool is one class; nodes nobody accepts are none of it
        groups["", (not by_class,) * len(trainers)] = []
    _, acceptances = zip(*groups, strict=True)
    return tuple(map(tuple, groups.values())), acceptances


def _count(names: tuple[str, ...], class_of: dict[str, int], n_classes: int) -> tuple[int, ...]:
    counts = [0] * n_classes
    for name in names:
        k = class_of.get(name)
        if k is not None:
            counts[k] += 1
    return tuple(counts)


def _view_units(problem: Problem) -> PoolView:
    """Count the units of each kind."""
    trainers = problem.trainers[: problem.p_jmax]
    hosts = view_hosts(problem.nodes, trainers)
    kinds = hosts.kinds
    names = tuple(map(hosts.ready, kinds))
    index = hosts.index()
    present: list[tuple[str, ...]] = []
    counts: list[tuple[int, ...]] = []
    accepts: list[tuple[bool, ...]] = []
    for trainer in trainers:
        own_names = tuple(names_within(trainer.current, hosts.part_of))
        present.append(own_names)
        counts.append(_count_units(trainer, own_names, hosts, index))
        accepts.append(tuple([_is_accepted(kind, trainer) for kind in kinds]))
    n_units = [
        len(ready_names) + hosts.most_carved(kind)
        for ready_names, kind in zip(names, kinds, strict=True)
    ]
    if not kinds:  # an empty pool is one class, which nobody accepts
        names, n_units, accepts = ((),), [0], [(False,)] * len(trainers)
    return PoolView(
        trainers=trainers,
        names=names,
        class_of={},
        present=tuple(present),
        held=tuple(counts),
        accepts=tuple(accepts),
        mixes=tuple([trainer.mixes_classes for trainer in trainers]),
        hosts=hosts,
        n_units=tuple(n_units),
    )


def _count_units(
    trainer: ProblemTrainer, names: Sequence[str], hosts: HostsView, index: Mapping[UnitKind, int]
) -> tuple[int, ...]:
    """Return how many of the nodes are units of each kind; of an empty pool one count, 0."""
    counts = [0] * max(len(index), 1)
    parts = Counter([hosts.part_of[name] for name in names])
    for part, count in parts.items():
        k = index.get(UnitKind(part.eligibility, trainer.width))
        if k is not None and part.serves(trainer.width):
            counts[k] += count
    return tuple(counts)


def _is_accepted(kind: UnitKind, trainer: ProblemTrainer) -> bool:
    if kind.width != trainer.width:
        return False
    return not trainer.eligible or kind.eligibility in trainer.eligible


def _units_apart(pool: PoolView) -> tuple[int, ...]:
    """Return how many units each kind has when no two share a host or contended parts.

    A host is the share of the kind that has least GPUs so far; a contended part is that of whole
    hosts where a trainer of whole hosts has it, else that of its width.
    """
    hosts = pool.hosts
    if hosts is None or not hosts.kinds:
        return pool.n_units
    counts = list(map(len, pool.names))
    index = hosts.index()
    held_as_whole: set[str] = set()  # by trainers of whole hosts
    for trainer, present in zip(pool.trainers, pool.present, strict=True):
        if trainer.width == WHOLE:
            held_as_whole.update(present)
    for eligibility in hosts.classes():
        for part in hosts.contended(eligibility):
            n_whole = len(held_as_whole.intersection(hosts.parts[part]))
            counts[index[UnitKind(eligibility, WHOLE)]] -= len(hosts.parts[part]) - n_whole
            counts[index[UnitKind(eligibility, part.width)]] -= n_whole
    n_gpus = [0] * len(counts)
    for host in hosts.free:
        fitting = [k for k, kind in enumerate(hosts.kinds) if _fits(kind, host)]
        if fitting:
            k = min(fitting, key=n_gpus.__getitem__)  # of those with as few GPUs the first
            n_gpus[k] += len(host.names)
            counts[k] += host.most(hosts.kinds[k].width)
    return tuple(counts)


def _fits(kind: UnitKind, host: FreeHost) -> bool:
    return kind.eligibility == host.eligibility and host.most(kind.width) > 0


class _Part(NamedTuple):
    """Trainers [j] that compete with each other alone, and the marks of their kinds."""

    marks: set[object]
    members: list[int]


def independent(pool: PoolView) -> list[tuple[list[int], list[int], PoolView]]:
    """Return trainers [j] that compete with each other alone, their kinds [k], and their pool.

    Of a pool whose GPUs are lent. Kinds compete where they are made of the same GPUs, and where
    some trainer accepts both.
    """
    hosts = pool.hosts
    if hosts is None or not hosts.kinds:
        return [(list(range(len(pool.trainers))), list(range(len(pool.names))), pool)]
    marks = [_mark(kind, hosts) for kind in hosts.kinds]
    parts: list[_Part] = []
    for j, accepts in enumerate(pool.accepts):
        part_marks = set(itertools.compress(marks, accepts))
        if not part_marks:
            part_marks = {None}  # those that accept nothing are together
        part = _Part(part_marks, [j])
        separate_parts: list[_Part] = []
        for other_part in parts:
            if other_part.marks.isdisjoint(part.marks):
                separate_parts.append(other_part)
            else:
                part.marks.update(other_part.marks)
                part.members.extend(other_part.members)
        parts = [*separate_parts, part]
    shares = []
    for part in parts:
        kinds = [k for k, mark in enumerate(marks) if mark in part.marks] or [0]
        part.members.sort()
        shares.append((part.members, kinds, _pool_of(pool, part.members, kinds)))
    return shares


def _mark(kind: UnitKind, hosts: HostsView) -> object:
    """Return what kinds that compete have in common: their class, where its kinds do."""
    return kind.eligibility if hosts.is_coupled(kind.eligibility) else kind


def _pool_of(pool: PoolView, members: Sequence[int], kinds: Sequence[int]) -> PoolView:
    """Return the pool of some trainers and kinds."""
    hosts = pool.hosts
    if hosts is not None:
        hosts = hosts.of_kinds(_picked(hosts.kinds, kinds))
    return replace(
        pool,
        trainers=_picked(pool.trainers, members),
        names=_picked(pool.names, kinds),
        present=_picked(pool.present, members),
        held=tuple([_picked(pool.held[j], kinds) for j in members]),
        accepts=tuple([_picked(pool.accepts[j], kinds) for j in members]),
        mixes=_picked(pool.mixes, members),
        hosts=hosts,
        n_units=_picked(pool.n_units, kinds),
    )


def _picked(items: Sequence[_T], indices: Sequence[int]) -> tuple[_T, ...]:
    """Return the items at these places."""
    return tuple([items[index] for index in indices])
