"""Judges an allocation before it is used; shares no code with the solvers.

Takes a Problem and an Allocation, raises CheckFailed with every rule that is broken.
Called by the milp policy on each decision, by tests on every policy's answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from milp.errors import CheckFailed
from milp.problem import Allocation, Objective, Problem, ProblemTrainer

RELATIVE_TOLERANCE = 1e-9


def check(problem: Problem, allocation: Allocation) -> None:
    """Raise ``CheckFailed`` unless the allocation keeps every rule and states its worth.

    That a node has at most one trainer holds by the form of ``assignment``.
    """
    violations = find_violations(problem, allocation)
    if violations:
        raise CheckFailed(tuple(violations))


def find_violations(problem: Problem, allocation: Allocation) -> list[str]:
    """One sentence per broken rule, in a fixed order; empty when all is well."""
    by_trainer: dict[str, list[str]] = {trainer.trainer_id: [] for trainer in problem.trainers}
    pool = {node.name for node in problem.nodes}
    found: list[str] = []
    for node, trainer_id in sorted(allocation.assignment.items()):
        if node not in pool:
            found.append(f"node {node} of trainer {trainer_id} is not in the pool")
        if trainer_id in by_trainer:
            by_trainer[trainer_id].append(node)
        else:
            found.append(f"node {node} goes to {trainer_id}, which is no trainer")
    for rank, trainer in enumerate(problem.trainers):
        names = by_trainer[trainer.trainer_id]
        if rank >= problem.p_jmax and names:
            found.append(
                f"trainer {trainer.trainer_id} runs, but {problem.p_jmax} trainers come before it"
            )
        found += _bounds(trainer, names)
        found += _migration(trainer, names, pool)
    found += _eligibility(problem, by_trainer)
    found += _numbers(problem, allocation, by_trainer)
    return found


def _bounds(trainer: ProblemTrainer, names: list[str]) -> list[str]:
    if names and not trainer.n_min <= len(names) <= trainer.n_max:
        bounds = f"{trainer.n_min}..{trainer.n_max}"
        return [f"trainer {trainer.trainer_id} has {len(names)} nodes, outside {bounds}"]
    return []


def _migration(trainer: ProblemTrainer, names: list[str], pool: set[str]) -> list[str]:
    """Eq. 6: nodes are only added or only taken away."""
    before = {name for name in trainer.current if name in pool}
    after = set(names)
    added, lost = sorted(after - before), sorted(before - after)
    if added and lost:
        moves = f"it loses {', '.join(lost)} and receives {', '.join(added)}"
        return [f"trainer {trainer.trainer_id} migrates: {moves}"]
    return []


def _eligibility(problem: Problem, by_trainer: Mapping[str, list[str]]) -> list[str]:
    """Nodes of accepted classes only, all of one class.

    Two classes count as one when every trainer that may run accepts both or neither.
    """
    may_run = problem.trainers[: problem.p_jmax]
    class_of = {node.name: node.eligibility for node in problem.nodes}

    def accepted_by(node_class: str) -> frozenset[str]:
        return frozenset(
            t.trainer_id for t in may_run if not t.eligible or node_class in t.eligible
        )

    merged = {node_class: accepted_by(node_class) for node_class in set(class_of.values())}
    found: list[str] = []
    for trainer in may_run:
        classes: set[frozenset[str]] = set()
        for name in by_trainer[trainer.trainer_id]:
            if name not in class_of:
                continue
            who = merged[class_of[name]]
            classes.add(who)
            if trainer.trainer_id not in who:
                found.append(
                    f"trainer {trainer.trainer_id} does not accept class"
                    f" {class_of[name]} of node {name}"
                )
        if len(classes) > 1:
            found.append(f"trainer {trainer.trainer_id} has nodes of {len(classes)} classes")
    return found


def _numbers(
    problem: Problem, allocation: Allocation, by_trainer: Mapping[str, list[str]]
) -> list[str]:
    found: list[str] = []
    sizes = {trainer_id: len(names) for trainer_id, names in by_trainer.items()}
    terms = _terms(problem, sizes)
    value = math.fsum(terms)
    # Relative to the terms: a sum near 0 keeps only their rounding.
    allowed = RELATIVE_TOLERANCE * max(math.fsum(abs(term) for term in terms), 1e-300)
    if not abs(allocation.objective - value) <= allowed:  # also true for NaN
        found.append(f"the objective is {value!r}, not {allocation.objective!r}")
    if not 0 <= allocation.node_price < math.inf:
        found.append(f"the node price is {allocation.node_price!r}")
    unknown = sorted(set(allocation.marginals) - set(by_trainer))
    found += [f"marginal values are given for {name}, which is no trainer" for name in unknown]
    return found


def objective_value(problem: Problem, sizes: Mapping[str, int]) -> float:
    """Eq. 16 for these sizes (missing trainers: 0), in objective units times seconds."""
    return math.fsum(_terms(problem, sizes))


def _terms(problem: Problem, sizes: Mapping[str, int]) -> list[float]:
    """Per trainer what its size earns over t_fwd_s and what its rescale costs."""
    pool = {node.name for node in problem.nodes}
    terms: list[float] = []
    for trainer in problem.trainers:
        before = sum(name in pool for name in trainer.current)
        after = sizes.get(trainer.trainer_id, 0)
        terms.append(problem.t_fwd_s * _rate(trainer, after, problem.objective))
        if after != before:
            rescale_s = trainer.rescale_up_s if after > before else trainer.rescale_down_s
            terms.append(-_rate(trainer, before, problem.objective) * rescale_s)
    return terms


def _rate(trainer: ProblemTrainer, size: int, objective: Objective) -> float:
    """O_j(size) in the unit of the objective."""
    rate = _samples_per_s(trainer, size)
    if objective is Objective.THROUGHPUT:
        return rate
    relative = rate / _samples_per_s(trainer, 1)
    return relative * trainer.weight if objective is Objective.WEIGHTED else relative


def _samples_per_s(trainer: ProblemTrainer, size: int) -> float:
    """The curve at a size: linear between breakpoints, (0, 0) before, flat after."""
    left_size, left = 0, 0.0
    for right_size, right in zip(trainer.curve.sizes, trainer.curve.samples_per_s, strict=True):
        if size <= right_size:
            # A mean of two values >= 0 loses no digits, however steep the curve falls.
            span = right_size - left_size
            return (left * (right_size - size) + right * (size - left_size)) / span
        left_size, left = right_size, right
    return left
