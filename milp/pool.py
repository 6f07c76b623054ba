"""The pool as the solver sees it: how many nodes of which class, who may hold what.

Takes a validated Problem; the exact solver, placement and simple policies read it.
Classes that the same trainers accept are one class here: when every trainer that may
run accepts every class present, there is one pool.
"""

from __future__ import annotations

from dataclasses import dataclass

from milp.errors import ProblemError
from milp.problem import Problem, ProblemNode, ProblemTrainer

MAX_CLASSES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolView:
    """Counts by merged class (index k) and by trainer that may run (index j, FCFS)."""

    trainers: tuple[ProblemTrainer, ...]  # the first p_jmax: those that may run
    names: tuple[tuple[str, ...], ...]  # [k]: names of the nodes of class k
    class_of: dict[str, int]  # node name -> k; nodes nobody accepts are missing
    present: tuple[tuple[str, ...], ...]  # [j]: current nodes still in the pool
    held: tuple[tuple[int, ...], ...]  # [j][k]: how many of them are of class k
    accepts: tuple[tuple[bool, ...], ...]  # [j][k]

    def counts(self) -> tuple[int, ...]:
        """Nodes per class."""
        return tuple(len(names) for names in self.names)

    def largest(self, j: int, k: int, *, extra: int = 0) -> int:
        """Largest size trainer j may take of class k, were there ``extra`` nodes more.

        A trainer that also holds nodes outside class k cannot grow (no migration:
        growing keeps all it has, and a trainer has nodes of one class), only shrink
        to what it holds of k.
        """
        trainer = self.trainers[j]
        if not self.accepts[j][k]:
            return 0
        if self.held[j][k] == len(self.present[j]):
            return min(trainer.n_max, len(self.names[k]) + extra)
        return min(trainer.n_max, self.held[j][k])


def view_pool(problem: Problem) -> PoolView:
    """Count the pool; raise ``ProblemError`` beyond three classes."""
    trainers = problem.trainers[: problem.p_jmax]
    pool_names = {node.name for node in problem.nodes}
    present = tuple(tuple(name for name in t.current if name in pool_names) for t in trainers)
    groups, accepts_by_group = _merge_classes(problem.nodes, trainers)
    class_of = {name: k for k, names in enumerate(groups) for name in names}
    held = tuple(_count(names, class_of, len(groups)) for names in present)
    accepts = tuple(
        tuple(accepted[j] for accepted in accepts_by_group) for j in range(len(trainers))
    )
    return PoolView(
        trainers=trainers,
        names=groups,
        class_of=class_of,
        present=present,
        held=held,
        accepts=accepts,
    )


def _merge_classes(
    nodes: tuple[ProblemNode, ...], trainers: tuple[ProblemTrainer, ...]
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[bool, ...], ...]]:
    """Group the nodes by who accepts them, in order of first appearance."""
    by_class: dict[str, list[str]] = {}
    for node in nodes:
        by_class.setdefault(node.eligibility, []).append(node.name)
    merged: dict[tuple[bool, ...], list[str]] = {}
    for name, members in by_class.items():
        accepted = tuple(not t.eligible or name in t.eligible for t in trainers)
        if any(accepted):
            merged.setdefault(accepted, []).extend(members)
    if len(merged) > MAX_CLASSES:
        raise ProblemError(
            "BFT-3020",
            f"The trainers tell {len(merged)} classes of nodes apart; the exact solution"
            f" covers {MAX_CLASSES}.",
            "Name fewer node classes in the trainers' eligibility.",
        )
    if not merged:  # an empty pool is one class; nodes nobody accepts are none of it
        merged = {tuple(not nodes for _ in trainers): []}
    return tuple(tuple(members) for members in merged.values()), tuple(merged)


def _count(names: tuple[str, ...], class_of: dict[str, int], n_classes: int) -> tuple[int, ...]:
    counts = [0] * n_classes
    for name in names:
        k = class_of.get(name)
        if k is not None:
            counts[k] += 1
    return tuple(counts)
