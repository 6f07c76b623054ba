"""The pool as the solver sees it: nodes by class, and the classes that each trainer may have.

Takes a validated Problem; the exact solver, placement and simple policies read it.
Classes that the same trainers accept, all of which mix classes, are one class here.
"""

from __future__ import annotations

from dataclasses import dataclass

from milp.problem import Problem, ProblemNode, ProblemTrainer


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

    def counts(self) -> tuple[int, ...]:
        """Nodes per class."""
        return tuple(len(names) for names in self.names)

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
            return min(trainer.n_max, sum(len(self.names[i]) for i in mine) + extra)
        return min(trainer.n_max, n_held)

    def largest_of_one(self, j: int, k: int, *, extra: int = 0) -> int:
        """The same for a trainer that is to have nodes of class k only, mixing or not."""
        trainer, n_held = self.trainers[j], self.held[j][k]
        if not self.accepts[j][k]:
            return 0
        if n_held == len(self.present[j]):
            return min(trainer.n_max, len(self.names[k]) + extra)
        return min(trainer.n_max, n_held)


def view_pool(problem: Problem) -> PoolView:
    """Count the pool, one pass over nodes and one over current nodes."""
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
