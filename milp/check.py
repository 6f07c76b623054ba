"""Judges an allocation before it is used; shares no code with the solvers.

Takes a Problem and an Allocation, raises CheckFailed with every rule that is broken.
Called by the milp policy on each decision, by tests on every policy's answers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from milp.problem import Allocation, CheckFailed, Marginal, Problem, ProblemNode, ProblemTrainer
from milp.worth import allocation_value, objective_value, terms

__all__ = ["allocation_value", "check", "find_violations", "objective_value"]

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
    pool = {node.name: node for node in problem.nodes}
    in_pool = pool.keys()
    by_trainer: defaultdict[str, list[str]] = defaultdict(list)
    for name, trainer_id in allocation.assignment.items():
        by_trainer[trainer_id].append(name)
    trainer_ids = {trainer.trainer_id for trainer in problem.trainers}
    before = [
        in_pool & trainer.current if trainer.current else set() for trainer in problem.trainers
    ]
    found: list[str] = []
    if not (allocation.assignment.keys() <= in_pool and by_trainer.keys() <= trainer_ids):
        found += _strangers(allocation, pool, trainer_ids)
    for rank, (trainer, held) in enumerate(zip(problem.trainers, before, strict=True)):
        names = by_trainer[trainer.trainer_id]
        if names and rank >= problem.p_jmax:
            found.append(
                f"trainer {trainer.trainer_id} runs, but {problem.p_jmax} trainers come before it"
            )
        if names and not trainer.n_min <= len(names) <= trainer.n_max:
            bounds = f"{trainer.n_min}..{trainer.n_max}"
            found.append(f"trainer {trainer.trainer_id} has {len(names)} nodes, outside {bounds}")
        # Eq. 6: nodes are only added or only taken away.
        if not (held.issuperset(names) or held.issubset(names)):
            found.append(_migration(trainer, set(names), held))
        if trainer.must_run and not names and rank < problem.p_jmax:
            found.append(f"trainer {trainer.trainer_id} must run, but has no nodes")
    for cap in problem.caps:
        together = sum([len(by_trainer.get(name, ())) for name in set(cap.trainers)])
        if together > cap.most:
            found.append(f"{cap.name} has {together} nodes, {cap.most} at most")
    found += _eligibility(problem, by_trainer, pool)
    sizes = {trainer_id: len(names) for trainer_id, names in by_trainer.items()}
    found += _worth(allocation, terms(problem, sizes, [len(held) for held in before]))
    found += _numbers(allocation, trainer_ids)
    return found


def _strangers(
    allocation: Allocation, pool: Mapping[str, ProblemNode], trainer_ids: set[str]
) -> list[str]:
    found: list[str] = []
    for name, trainer_id in sorted(allocation.assignment.items()):
        if name not in pool:
            found.append(f"node {name} of trainer {trainer_id} is not in the pool")
        if trainer_id not in trainer_ids:
            found.append(f"node {name} goes to {trainer_id}, which is no trainer")
    return found


def _migration(trainer: ProblemTrainer, after: set[str], before: set[str]) -> str:
    lost, added = ", ".join(sorted(before - after)), ", ".join(sorted(after - before))
    return f"trainer {trainer.trainer_id} migrates: it loses {lost} and receives {added}"


def _eligibility(
    problem: Problem, by_trainer: Mapping[str, Sequence[str]], pool: Mapping[str, ProblemNode]
) -> list[str]:
    """Nodes of accepted classes only; all of one class unless the trainer mixes them."""
    may_run = problem.trainers[: problem.p_jmax]
    there = {node.eligibility for node in problem.nodes}
    if len(there) == 1 and not any(trainer.eligible for trainer in may_run):
        return []
    found: list[str] = []
    for trainer in may_run:
        names = [name for name in by_trainer[trainer.trainer_id] if name in pool]
        classes = {pool[name].eligibility for name in names}
        if refused := classes.difference(trainer.eligible or classes):
            found += [
                f"trainer {trainer.trainer_id} does not accept class {pool[n].eligibility}"
                f" of node {n}"
                for n in names
                if pool[n].eligibility in refused
            ]
        if len(classes) > 1 and not trainer.mixes_classes:
            found.append(f"trainer {trainer.trainer_id} has nodes of {len(classes)} classes")
    return sorted(found) if len(found) > 1 else found


def _worth(allocation: Allocation, parts: Sequence[float]) -> list[str]:
    """The stated objective is what the map is worth: the sum of its parts."""
    value = math.fsum(parts)
    # Relative to the parts: a sum near 0 keeps only their rounding.
    allowed = RELATIVE_TOLERANCE * max(math.fsum(map(abs, parts)), 1e-300)
    if not abs(allocation.objective - value) <= allowed:  # also true for NaN
        return [f"the objective is {value!r}, not {allocation.objective!r}"]
    return []


def _numbers(allocation: Allocation, trainer_ids: set[str]) -> list[str]:
    """Price, gap and marginal values are numbers that can be what they claim to be."""
    found: list[str] = []
    if not 0 <= allocation.node_price < math.inf:
        found.append(f"the node price is {allocation.node_price!r}")
    if not 0 <= allocation.gap < math.inf:
        found.append(f"the gap is {allocation.gap!r}")
    if not allocation.marginals.keys() <= trainer_ids:
        found += [
            f"marginal values are given for {name}, which is no trainer"
            for name in sorted(allocation.marginals.keys() - trainer_ids)
        ]
    found += [
        f"the marginal values of {name} are {marginal}"
        for name, marginal in allocation.marginals.items()
        if not _is_finite(marginal)
    ]
    return found


def _is_finite(marginal: Marginal) -> bool:
    gain, loss = marginal.gain_of_one_more, marginal.loss_of_one_fewer
    return (gain is None or math.isfinite(gain)) and (loss is None or math.isfinite(loss))
