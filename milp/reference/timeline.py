"""The definition of the objective: what a trainer makes within T_fwd, told by a clock.

A decision orders some nodes to go and others to come. From then on the clock runs:

    training    it makes O(its nodes) each second. Nodes that are to come warm up meanwhile.
    pause       when nodes join or leave, its nodes stop. Eq. 16 (Liu et al., arXiv 2106.12091)
                books a pause as what they would have made as they were, O(C_j) R, beside the T_fwd
                seconds; the clock stands still meanwhile.

Nodes leave at once, in one pause of R_dw. Those that come join as soon as they are warm and the
trainer may have so many, in one pause of R_up each time; a node that another one replaces trains
until all have joined. What is ordered is booked in whole, whenever within T_fwd it happens: a node
that is warm only after T_fwd costs its pause all the same.

Nothing of this is an equation, and it shares no code with ``milp.tables``, ``milp.worth`` or
``bftrainer.decide.claims``: tests derive each of their terms from it. All numbers are exact
fractions. Imports ``milp.problem`` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from fractions import Fraction

from milp.problem import Curve, Objective, Problem, ProblemTrainer, names_of

Rate = Callable[[AbstractSet[str]], Fraction]  # units of the objective per second, of some nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """What a decision means for one trainer."""

    has: frozenset[str]  # nodes of the pool that it trains on
    gets: frozenset[str]  # nodes that it is to have
    warm_at_s: Mapping[str, float]  # of each that comes: when it can join, in seconds from now


def made_within_horizon(
    trainer: ProblemTrainer, change: NodeChange, *, horizon_s: float, rate: Rate
) -> Fraction:
    """Let the clock run for ``horizon_s`` (T_fwd) seconds of training.

    Returns:
        Samples, or units of the objective times seconds, with the pauses' loss taken off.
    """
    end_s, members, amount = Fraction(horizon_s), change.has, Fraction(0)
    coming, leaving = change.gets - change.has, change.has - change.gets
    if leaving and not coming:
        amount -= rate(members) * Fraction(trainer.rescale_down_s)
        members, leaving = members - leaving, frozenset()
    now_s = Fraction(0)
    for warm_at_s in sorted({Fraction(change.warm_at_s[node]) for node in coming}):
        until_s = min(warm_at_s, end_s)
        amount += rate(members) * (until_s - now_s)
        now_s = until_s
        warm = {node for node in coming if Fraction(change.warm_at_s[node]) <= warm_at_s}
        # A node that another one replaces trains until all have joined.
        leaving_now = leaving if warm == coming else frozenset()
        members_after = _joined(trainer, members, warm, leaving_now)
        if members_after != members:
            amount -= rate(members) * Fraction(trainer.rescale_up_s)
            members = members_after
    return amount + rate(members) * (end_s - now_s)


def _joined(
    trainer: ProblemTrainer,
    members: frozenset[str],
    warm: AbstractSet[str],
    leaving: AbstractSet[str],
) -> frozenset[str]:
    """Return its nodes when those that are warm join as far as it may have so many."""
    staying = members - leaving
    joining = sorted(warm - staying)
    size = _allowed_size(trainer, len(staying) + len(joining))
    if size < len(members) - len(leaving) or not joining:
        return members
    return staying | frozenset(joining[: max(0, size - len(staying))])


def _allowed_size(trainer: ProblemTrainer, most: int) -> int:
    """Return the largest size up to ``most`` that it may have; 0: none."""
    sizes = range(trainer.n_min, min(trainer.n_max, most) + 1)
    return max([size for size in sizes if not trainer.sizes or size in trainer.sizes], default=0)


# ---- problems --------------------------------------------------------------------------------


def change_of(problem: Problem, trainer: ProblemTrainer, gets: AbstractSet[str]) -> NodeChange:
    """Return what it means for the trainer to have those nodes of the pool."""
    has = frozenset(names_of(problem.nodes)).intersection(trainer.current)
    warm_at_s = dict.fromkeys(gets - has, trainer.warm_up_s)
    return NodeChange(has=has, gets=frozenset(gets), warm_at_s=warm_at_s)


def worth_of(problem: Problem, assignment: Mapping[str, str]) -> float:
    """Return what all trainers make within T_fwd with these nodes, node -> trainer_id."""
    amount = Fraction(0)
    for trainer in problem.trainers:
        gets = {node for node, holder in assignment.items() if holder == trainer.trainer_id}
        change = change_of(problem, trainer, gets)
        rate = rate_by_count(trainer, problem.objective)
        amount += made_within_horizon(trainer, change, horizon_s=problem.t_fwd_s, rate=rate)
    return float(amount)


def rate_by_count(trainer: ProblemTrainer, objective: Objective) -> Rate:
    """Return O_j where all nodes are alike."""
    curve = trainer.curve
    if objective is Objective.UTILITY and trainer.utility is not None:
        curve = trainer.utility

    def rate(nodes: AbstractSet[str]) -> Fraction:
        samples_per_s = height(curve, len(nodes))
        if objective in {Objective.THROUGHPUT, Objective.UTILITY}:
            return samples_per_s
        relative = samples_per_s / height(curve, 1)
        if objective is Objective.WEIGHTED:
            return relative * Fraction(trainer.weight)
        return relative

    return rate


def height(curve: Curve, size: int) -> Fraction:
    """Walk along the curve from (0, 0) to ``size``; behind its last corner it is flat."""
    x, y = 0, Fraction(0)
    for corner, value in zip(curve.sizes, curve.samples_per_s, strict=True):
        if size <= corner:
            return y + (Fraction(value) - y) * Fraction(size - x, corner - x)
        x, y = corner, Fraction(value)
    return y
