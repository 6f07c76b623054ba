"""Caps on the nodes of a user's, an account's or a group's trainers. Pure.

``of_groups`` states them, as part of the problem. ``WithinCaps`` has any policy keep them: one that
does not know of caps is asked again with smaller bounds for trainers whose cap it exceeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from bftrainer.decide.constraints.chain import Ask, Constraint, stated
from bftrainer.decide.policies.base import Decided, in_order
from bftrainer.model.fairness import Limits, limit_of
from bftrainer.model.parts import most_units
from bftrainer.model.trainer import TrainerRecord, TrainerSpec
from milp.problem import Cap, Problem, ProblemTrainer, unit_sizes


def of_groups(
    records: Iterable[TrainerRecord],
    limits: Limits,
    kept: Mapping[str, int],
    host_gpus: int = 0,
) -> tuple[Cap, ...]:
    """Return the caps of a decision.

    A unit of K GPUs counts as K/G of a node with G GPUs. Where trainers with units of several
    sizes have a limit together, each unit counts as the largest of them.

    Args:
        records: all trainers.
        limits: of the site.
        kept: nodes of trainers that are not allocated; they count.
        host_gpus: G, of the smallest host whose GPUs are lent one by one; 0: there is none.
    """
    if not limits.is_of_groups:
        return ()
    members: dict[tuple[str, int], list[str]] = {}
    for record in records:
        for name, max_nodes, _ in limits_on(record.spec, limits):
            members.setdefault((name, max_nodes), []).append(record.trainer_id)
    caps: list[Cap] = []
    gpus_per_unit: dict[str, int] = {}
    if host_gpus:
        gpus_per_unit = {record.trainer_id: record.spec.gpus_per_unit for record in records}
    for (name, max_nodes), trainer_ids in members.items():
        max_units = max_nodes
        if host_gpus:
            n_gpus = max([gpus_per_unit[name] or host_gpus for name in trainer_ids])
            max_units = most_units(max_nodes, n_gpus, host_gpus)
        n_left = max(0, max_units - _total(trainer_ids, kept))
        caps.append(Cap(name=name, trainers=tuple(trainer_ids), most=n_left))
    return tuple(caps)


def limits_on(spec: TrainerSpec, limits: Limits) -> list[tuple[str, int, str]]:
    """Return whose limits a trainer shares: a name, the nodes, the policy's key."""
    account = "the default account"
    if spec.account:
        account = f"account {spec.account}"
    shared_limits = []
    for name, max_nodes, key in (
        (f"user {spec.user}", limit_of(limits.by_user, spec.user), "max_nodes_by_user"),
        (account, limit_of(limits.by_account, spec.account), "max_nodes_by_account"),
    ):
        if max_nodes is not None:
            shared_limits.append((name, max_nodes, key))
    return shared_limits


@dataclass(frozen=True, slots=True, kw_only=True)
class WithinCaps(Constraint[Problem, Decided]):
    """Caps, for a policy that knows nothing of them."""

    is_kept_by_policy: bool = False
    name: ClassVar[str] = "caps"
    in_words: ClassVar[str] = (
        "limits of users and accounts (max_nodes_by_user, max_nodes_by_account)"
    )

    def answer(self, problem: Problem, ask: Ask) -> Decided:
        """Return an answer within the caps.

        Members of an exceeded cap are bound to their sizes in the answer, the last admitted ones to
        less; what that leaves is offered to the others. So a cap is exceeded once, unless the
        policy lets no running trainer shrink: then whole trainers get nothing.
        """
        has_to_run = any(trainer.must_run for trainer in problem.trainers)
        if self.is_kept_by_policy or not (problem.caps or has_to_run):
            return ask(problem)
        bounds = dict[str, int]()
        for _ in range(len(problem.caps) + 1):
            decided = ask(_offered(problem, bounds))
            sizes = decided.allocation.unit_sizes(problem)
            n_min = _n_min_by_id(problem)
            order = in_order(n_min, decided.order)
            is_within = True
            for cap in problem.caps:
                if _total(cap.trainers, sizes) > cap.most:
                    is_within = False
                    bounds |= _cut(cap, {**sizes, **bounds}, order, n_min)
            if is_within:
                return stated(problem, decided, decided.allocation.assignment)
        assignment = dict(decided.allocation.assignment)
        for cap in problem.caps:
            for trainer_id in reversed(order):
                if trainer_id not in cap.trainers:
                    continue
                if _total(cap.trainers, unit_sizes(problem, assignment)) > cap.most:
                    _drop(trainer_id, assignment)
        return stated(problem, decided, assignment)

    def lifted(self, problem: Problem) -> Problem:
        """Return the problem without caps."""
        return replace(problem, caps=())


def _total(trainer_ids: Iterable[str], sizes: Mapping[str, int]) -> int:
    total = 0
    for trainer_id in trainer_ids:
        total += sizes.get(trainer_id, 0)
    return total


def _n_min_by_id(problem: Problem) -> dict[str, int]:
    return {trainer.trainer_id: trainer.n_min for trainer in problem.trainers}


def _drop(trainer_id: str, assignment: dict[str, str]) -> None:
    """Take all its nodes from a trainer."""
    for node, owner in list(assignment.items()):
        if owner == trainer_id:
            del assignment[node]


def _cut(
    cap: Cap, sizes: Mapping[str, int], order: Iterable[str], n_min: Mapping[str, int]
) -> dict[str, int]:
    """Return the sizes of the members with the last admitted ones cut."""
    nodes_left, bounds = cap.most, dict[str, int]()
    for trainer_id in order:
        if trainer_id in cap.trainers:
            size = min(sizes.get(trainer_id, 0), nodes_left)
            if size < n_min[trainer_id]:
                size = 0
            bounds[trainer_id] = size
            nodes_left -= size
    return bounds


def _offered(problem: Problem, bounds: Mapping[str, int]) -> Problem:
    """Return the problem with nothing in it that policies need not know."""
    never = len(problem.nodes) + 1  # a size that nobody can have

    trainers: list[ProblemTrainer] = []
    for rank, trainer in enumerate(problem.trainers):
        max_size = min(bounds.get(trainer.trainer_id, trainer.n_max), trainer.n_max)
        n_min = trainer.n_min
        if rank >= problem.p_jmax or not max_size:
            n_min = max_size = never
        trainers.append(replace(trainer, n_min=n_min, n_max=max_size, must_run=False))
    return replace(problem, trainers=tuple(trainers), caps=())
