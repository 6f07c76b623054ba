"""The pool as the solver sees it: nodes by class, and the classes that each trainer may have.

Takes a validated Problem; the exact solver, placement and simple policies read it.
Classes that the same trainers accept, all of which mix classes, are one class here.

Where GPUs are lent, "nodes" here are units, and the classes are kinds of units (``milp.hosts``):
a class of nodes and a width. Their counts are what there is of each kind were it the only one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from milp.hosts import WHOLE, HostsView, UnitKind, view_hosts
from milp.problem import Problem, ProblemNode, ProblemTrainer, lends_gpus


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

    def counts(self) -> tuple[int, ...]:
        """Nodes per class."""
        return self.n_units or tuple(len(names) for names in self.names)

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
        mine = [i for i, is_mine in enumerate(accepts) if is_mine]
        n_held = sum(self.held[j][i] for i in mine)
        if n_held == len(self.present[j]):
            return min(trainer.n_max, sum(self.count(i) for i in mine) + extra)
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
        return replace(pool, n_units=_units_apart(pool)) if is_apart else pool
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
    if len(class_of) == len(problem.nodes):
        in_pool: set[str] | dict[str, int] = class_of
    else:
        in_pool = {node.name for node in problem.nodes}
    is_there = in_pool.__contains__
    present = tuple([tuple(filter(is_there, t.current)) for t in trainers])
    if len(groups) == 1 and in_pool is class_of:
        held: tuple[tuple[int, ...], ...] = tuple([(len(names),) for names in present])
    else:
        held = tuple([_count(names, class_of, len(groups)) for names in present])
    return PoolView(
        trainers=trainers,
        names=groups,
        class_of=class_of,
        present=present,
        held=held,
        accepts=tuple(zip(*accepting, strict=True)) if trainers else (),
        mixes=tuple([t.mixes_classes for t in trainers]),
    )


def _merge_classes(
    by_class: dict[str, list[ProblemNode]], trainers: tuple[ProblemTrainer, ...]
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[bool, ...], ...]]:
    """Group the nodes by the trainers that accept them, in order of first appearance."""
    merged: dict[tuple[str, tuple[bool, ...]], list[str]] = {}
    for name, members in by_class.items():
        accepted = tuple([not t.eligible or name in t.eligible for t in trainers])
        if any(accepted):
            # Classes that the same trainers accept are one, unless some trainer mixes none.
            mix = all(t.mixes_classes for t, is_it in zip(trainers, accepted, strict=True) if is_it)
            group = "" if mix else name
            merged.setdefault((group, accepted), []).extend([node.name for node in members])
    if not merged:  # an empty pool is one class; nodes nobody accepts are none of it
        merged = {("", tuple(not by_class for _ in trainers)): []}
    groups = tuple(tuple(members) for members in merged.values())
    return groups, tuple(accepted for _, accepted in merged)


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
    names = tuple([tuple(hosts.ready(kind)) for kind in kinds])
    index = {kind: k for k, kind in enumerate(kinds)}
    present: list[tuple[str, ...]] = []
    held: list[tuple[int, ...]] = []
    for trainer in trainers:
        own = tuple([name for name in trainer.current if name in hosts.part_of])
        counts = [0] * max(len(kinds), 1)
        for part, count in Counter([hosts.part_of[name] for name in own]).items():
            k = index.get(UnitKind(part.eligibility, trainer.width))
            if k is not None and part.serves(trainer.width):
                counts[k] += count
        present.append(own)
        held.append(tuple(counts))
    accepts = [
        tuple(
            [
                kind.width == trainer.width
                and (not trainer.eligible or kind.eligibility in trainer.eligible)
                for kind in kinds
            ]
        )
        for trainer in trainers
    ]
    if not kinds:  # an empty pool is one class, which nobody accepts
        names, accepts = ((),), [(False,) for _ in trainers]
    return PoolView(
        trainers=trainers,
        names=names,
        class_of={},
        present=tuple(present),
        held=tuple(held),
        accepts=tuple(accepts),
        mixes=tuple([t.mixes_classes for t in trainers]),
        hosts=hosts,
        n_units=tuple(
            [len(own) + hosts.most_carved(kind) for own, kind in zip(names, kinds, strict=True)]
        )
        if kinds
        else (0,),
    )


def _units_apart(pool: PoolView) -> tuple[int, ...]:
    """Return how many units each kind has when no two share a host or contended parts.

    A host is the share of the kind that has least GPUs so far; a contended part is that of whole
    hosts where a trainer of whole hosts has it, else that of its width.
    """
    hosts = pool.hosts
    if hosts is None or not hosts.kinds:
        return pool.n_units
    counts = [len(names) for names in pool.names]
    index = {kind: k for k, kind in enumerate(hosts.kinds)}
    held_whole = {
        name
        for trainer, present in zip(pool.trainers, pool.present, strict=True)
        if trainer.width == WHOLE
        for name in present
    }
    for eligibility in dict.fromkeys([kind.eligibility for kind in hosts.kinds]):
        for part in hosts.contended(eligibility):
            n_whole = len(held_whole.intersection(hosts.parts[part]))
            counts[index[UnitKind(eligibility, WHOLE)]] -= len(hosts.parts[part]) - n_whole
            counts[index[UnitKind(eligibility, part.width)]] -= n_whole
    n_gpus = [0] * len(counts)
    for host in hosts.free:
        fitting = [
            (n_gpus[k], k)
            for k, kind in enumerate(hosts.kinds)
            if kind.eligibility == host.eligibility and host.most(kind.width)
        ]
        if fitting:
            _, k = min(fitting)
            n_gpus[k] += len(host.names)
            counts[k] += host.most(hosts.kinds[k].width)
    return tuple(counts)


def independent(pool: PoolView) -> list[tuple[list[int], list[int], PoolView]]:
    """Return trainers [j] that compete with each other alone, their kinds [k], and their pool.

    Of a pool whose GPUs are lent. Kinds compete where they are made of the same GPUs, and where
    some trainer accepts both.
    """
    hosts = pool.hosts
    if hosts is None or not hosts.kinds:
        return [(list(range(len(pool.trainers))), list(range(len(pool.names))), pool)]
    coupled = {kind.eligibility for kind in hosts.kinds}
    coupled = {eligibility for eligibility in coupled if hosts.is_coupled(eligibility)}
    marks = [
        kind.eligibility if kind.eligibility in coupled else kind for kind in hosts.kinds
    ]  # kinds with one mark compete
    parts: list[tuple[set[object], list[int]]] = []
    for j, accepts in enumerate(pool.accepts):
        own: set[object] = {mark for mark, is_its in zip(marks, accepts, strict=True) if is_its}
        own = own or {None}  # those that accept nothing are together
        members, apart = [j], list[tuple[set[object], list[int]]]()
        for their_marks, others in parts:
            if their_marks.isdisjoint(own):
                apart.append((their_marks, others))
            else:
                own |= their_marks
                members = others + members
        parts = [*apart, (own, members)]
    shares = []
    for own, members in parts:
        of_part = [k for k, mark in enumerate(marks) if mark in own] or [0]
        members.sort()
        shares.append((members, of_part, _part_of(pool, members, of_part)))
    return shares


def _part_of(pool: PoolView, members: Sequence[int], kinds: Sequence[int]) -> PoolView:
    """Return the pool of some trainers and kinds."""
    hosts = pool.hosts
    return replace(
        pool,
        trainers=tuple([pool.trainers[j] for j in members]),
        names=tuple([pool.names[k] for k in kinds]),
        present=tuple([pool.present[j] for j in members]),
        held=tuple([tuple([pool.held[j][k] for k in kinds]) for j in members]),
        accepts=tuple([tuple([pool.accepts[j][k] for k in kinds]) for j in members]),
        mixes=tuple([pool.mixes[j] for j in members]),
        hosts=None if hosts is None else hosts.of_kinds([hosts.kinds[k] for k in kinds]),
        n_units=tuple([pool.n_units[k] for k in kinds]),
    )
