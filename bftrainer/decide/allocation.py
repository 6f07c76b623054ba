"""Allocates the nodes of the pool to trainers by the site's policy: a stage of ``decision``.

``problem`` states the allocation problem, ``policy_answer`` asks the policy through the constraints
that any answer must meet. Nodes stay with trainers whose rescale budget is used up, and go to those
whose turn it is, before the policy is asked. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

from bftrainer.decide import policy_answer, slow_nodes, turns
from bftrainer.decide import problem as problem_of
from bftrainer.decide.constraints import swaps
from bftrainer.decide.constraints.caps import of_groups
from bftrainer.decide.draft import Draft
from bftrainer.model.assignments import nodes_by_trainer
from milp.problem import Problem


def stage(draft: Draft) -> Draft:
    """Allocate the pool; without a policy every trainer keeps its nodes that are still in it."""
    given, pool = draft.given, draft.pool
    names = {n.name for n in pool.nodes}
    memory = slow_nodes.settle(draft.memory, names, given)
    draft = replace(draft, memory=memory)
    # Stragglers that stay until they are replaced are not allocated.
    names -= memory.replacing.keys() | given.cooling.keys()
    kept_nodes = _kept(draft, names)
    if draft.policy is not None:
        kept_nodes |= _turns(draft, names, kept_nodes)
    policy, decided, assignment = draft.policy, None, dict[str, str]()
    owners = swaps.owners_of(pool, given)
    if policy is None:
        in_pool = {n.name for n in pool.nodes}
        assignment = {n: t for n, t in memory.assignment.items() if n in in_pool}
    elif problem := _problem(draft, names - kept_nodes.keys(), kept_nodes):
        kept_ids = set(kept_nodes.values())
        decided = policy_answer.decided(problem, policy, given, draft.memory, owners, kept_ids)
        assignment = dict(decided.allocation.assignment)
        memory = replace(memory, policy_state=decided.state)
    assignment |= kept_nodes
    if memory.slow_nodes or memory.replacing:
        memory = replace(memory, replacing=slow_nodes.replaced(memory, assignment, given))
    coming = swaps.under_way(memory, pool, given.now_s).values()
    assignment, swapped = swaps.split(assignment, owners, memory.assignment, coming)
    return replace(draft, memory=memory, decided=decided, assignment=assignment, swaps=swapped)


def _kept(draft: Draft, names: set[str]) -> dict[str, str]:
    """Return which nodes stay with their trainer, whatever the policy decides.

    A trainer that would fall below its n_min is allocated like any other, and so are those under a
    limit that is exceeded.
    """
    given = draft.given
    if not given.settled_until_s:
        return {}
    held_nodes = nodes_by_trainer(draft.memory.assignment, names)
    sizes = {trainer_id: len(nodes) for trainer_id, nodes in held_nodes.items()}
    over = set[str]()
    for cap in of_groups(given.trainers, given.settings.limits, {}):
        if sum([sizes.get(trainer_id, 0) for trainer_id in cap.trainers]) > cap.most:
            over.update(cap.trainers)
    kept_nodes: dict[str, str] = {}
    for record in given.trainers:
        trainer_id = record.trainer_id
        nodes = held_nodes.get(trainer_id, ())
        is_settled = given.now_s < given.settled_until_s.get(trainer_id, 0.0)
        if is_settled and record.spec.has_size(len(nodes)) and trainer_id not in over:
            kept_nodes.update(dict.fromkeys(nodes, trainer_id))
    return kept_nodes


def _turns(draft: Draft, names: set[str], kept_nodes: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes of trainers whose turn it is."""
    turn_nodes: dict[str, str] = {}
    held_nodes = nodes_by_trainer(draft.memory.assignment, names)
    specs = {record.trainer_id: record.spec for record in draft.given.trainers}
    for trainer_id in turns.in_turn(draft.memory, draft.given):
        its_nodes = held_nodes.get(trainer_id, ())
        assigned_nodes = {*kept_nodes, *turn_nodes}
        if trainer_id in kept_nodes.values():
            continue
        if specs[trainer_id].has_size(len(its_nodes)) and assigned_nodes.isdisjoint(its_nodes):
            turn_nodes.update(dict.fromkeys(its_nodes, trainer_id))
        elif problem := _problem(draft, names, {}):
            turn_nodes |= turns.given_to(trainer_id, problem, assigned_nodes)
    return turn_nodes


def _problem(draft: Draft, names: AbstractSet[str], kept: Mapping[str, str]) -> Problem | None:
    return problem_of.of_pool(draft.given, draft.memory, draft.pool, draft.policy, names, kept)
