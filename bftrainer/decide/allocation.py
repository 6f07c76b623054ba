"""Allocates the nodes of the pool to trainers by the site's policy: a stage of ``decision``.

States the allocation problem: a trainer has (C_j) the nodes on which it trains and those on which
its workers start; only what trains pauses at a rescale. Without the latter a trainer that starts
would lose its nodes to another one, for which they are worth a little more, whenever the pool
changes, and begin again and again: where warm-ups are as long as nodes stay, half of the work was
lost. For a policy that never rescales a trainer has a start only once it trains: the others' size
is not chosen yet. All other nodes count as free; they stay with the trainer they were planned for
where the allocation is as good, so that no warm-up is wasted. Trainers whose rescale budget is
used up keep their nodes; those that rest after a shrink get no more than they train on
(``TrainerRecord.rests_until_s``). Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from bftrainer.decide import claims, losses, observation, policy_answer, slow_nodes
from bftrainer.decide.admission import Admission, given_to, in_turn, of_groups
from bftrainer.decide.draft import Draft
from bftrainer.decide.eligible import suited
from bftrainer.decide.policies.base import AllocationPolicy, Decided
from bftrainer.decide.policy_answer import nodes_by_trainer, problem_node, problem_trainer
from bftrainer.model.trainer import TrainerRecord
from milp.check import find_violations
from milp.problem import Allocation, Problem, ProblemNode, ProblemTrainer


def stage(draft: Draft) -> Draft:
    """Allocate the pool; without a policy every trainer keeps its nodes that are still in it."""
    given, pool = draft.given, draft.pool
    names = {n.name for n in pool.nodes}
    memory = slow_nodes.settle(draft.memory, names, given)
    draft = replace(draft, memory=memory)
    # Stragglers that stay until they are replaced are not allocated.
    names -= memory.replacing.keys() | given.cooling.keys()
    kept = _kept(draft, names)
    if draft.policy is not None:
        kept |= _turns(draft, names, kept)
    policy, decided, assignment = draft.policy, None, dict[str, str]()
    if policy is None:
        there = {n.name for n in pool.nodes}
        assignment = {n: t for n, t in memory.assignment.items() if n in there}
    elif problem := _problem(draft, names - kept.keys(), kept):
        decided = _decided(problem, policy, draft, kept)
        assignment = dict(decided.allocation.assignment)
        memory = replace(memory, policy_state=decided.state)
    assignment |= kept
    if memory.slow_nodes or memory.replacing:
        memory = replace(memory, replacing=slow_nodes.replaced(memory, assignment, given))
    coming = claims.under_way(memory, pool, given.now_s).values()
    owners = claims.owners_of(pool, given)
    assignment, swapped = claims.split(assignment, owners, memory.assignment, coming)
    return replace(draft, memory=memory, decided=decided, assignment=assignment, swaps=swapped)


def _kept(draft: Draft, names: set[str]) -> dict[str, str]:
    """Return which nodes stay with their trainer, whatever the policy decides.

    A trainer that would fall below its n_min is allocated like any other, and so are those under a
    limit that is exceeded.
    """
    given = draft.given
    if not given.settled_until_s:
        return {}
    held = nodes_by_trainer(draft.memory.assignment, names)
    sizes = {one: len(own) for one, own in held.items()}
    over = set[str]()
    for cap in of_groups(given.trainers, given.settings.limits, {}):
        if sum([sizes.get(one, 0) for one in cap.trainers]) > cap.most:
            over.update(cap.trainers)
    return {
        node: record.trainer_id
        for record in given.trainers
        if given.now_s < given.settled_until_s.get(record.trainer_id, 0.0)
        and record.spec.has_size(len(held.get(record.trainer_id, ())))
        and record.trainer_id not in over
        for node in held[record.trainer_id]
    }


def _turns(draft: Draft, names: set[str], kept: Mapping[str, str]) -> dict[str, str]:
    """Return the nodes of trainers whose turn it is."""
    found: dict[str, str] = {}
    held = nodes_by_trainer(draft.memory.assignment, names)
    specs = {record.trainer_id: record.spec for record in draft.given.trainers}
    for one in in_turn(draft.memory, draft.given):
        own = held.get(one, ())
        taken = {*kept, *found}
        if one in kept.values():
            continue
        if specs[one].has_size(len(own)) and taken.isdisjoint(own):
            found.update(dict.fromkeys(own, one))
        elif problem := _problem(draft, names, {}):
            found |= given_to(one, problem, taken)
    return found


def _problem(draft: Draft, names: set[str], kept: Mapping[str, str]) -> Problem | None:
    """State the allocation problem; ``None`` when there is nothing to allocate."""
    given, settings = draft.given, draft.given.settings
    as_they_are = set(kept.values())
    trainers, now_s, t_fwd_s = given.trainers, given.now_s, settings.t_fwd_s
    if as_they_are:
        trainers = tuple([r for r in trainers if r.trainer_id not in as_they_are])
    p_jmax = settings.p_jmax - len(as_they_are)
    if not trainers or not names or p_jmax < 1:
        return None
    training = nodes_by_trainer(given.training, names)
    starts = names & draft.memory.joining.since_s.keys() - given.training.keys()
    starting = nodes_by_trainer(draft.memory.assignment, starts)
    has_starts = draft.policy is not None and draft.policy.traits.rescales
    problem = Problem(
        nodes=tuple(
            [
                problem_node(n.name, n.gpus, has_pilot=bool(n.pilot_id))
                if n.usable_until_s is None
                # Another in every decision: nothing to remember.
                else problem_node.__wrapped__(
                    n.name, n.gpus, max(0.0, n.usable_until_s - now_s), has_pilot=bool(n.pilot_id)
                )
                for n in draft.pool.nodes
                if n.name in names
            ]
        ),
        trainers=tuple(
            [
                problem_trainer(
                    record,
                    (*own, *(starting.get(record.trainer_id, ()) if own or has_starts else ())),
                    settings,
                    own,
                )
                for record in trainers
                for own in (training.get(record.trainer_id, ()),)
            ]
        ),
        t_fwd_s=t_fwd_s,
        p_jmax=p_jmax,
        objective=settings.objective,
        caps=of_groups(given.trainers, settings.limits, Counter(kept.values())),
    )
    found = suited(problem, given, observation.warm_up_s(draft.memory.joining, t_fwd_s, now_s))
    if found is None:
        return None
    return _resting(_with_losses(found, draft), trainers, now_s, training)


def _with_losses(problem: Problem, draft: Draft) -> Problem:
    """Return the problem with curves that count losses of nodes, for a policy that expects them."""
    given, policy = draft.given, draft.policy
    if policy is None or not (policy.traits.expects_losses and given.settings.expects_losses):
        return problem
    life_node_s = losses.life_s(draft.memory.losses, given.now_s)
    if math.isinf(life_node_s):
        return problem
    records = {record.trainer_id: record for record in given.trainers}
    trainers = tuple(
        [
            losses.expected(
                trainer,
                records[trainer.trainer_id],
                given.settings,
                life_node_s=life_node_s,
                n_nodes=len(problem.nodes),
            )
            for trainer in problem.trainers
        ]
    )
    return replace(problem, trainers=trainers)


def _resting(
    problem: Problem,
    records: Iterable[TrainerRecord],
    now_s: float,
    training: Mapping[str, Sequence[str]],
) -> Problem:
    """Return the problem in which trainers that rest after a shrink do not grow."""
    sizes = {r.trainer_id: len(training.get(r.trainer_id, ())) for r in _at_rest(records, now_s)}
    if not any(sizes.values()):
        return problem

    def bound(trainer: ProblemTrainer) -> ProblemTrainer:
        size = sizes.get(trainer.trainer_id, 0)
        most = max(trainer.n_min, min(trainer.n_max, size))
        return replace(trainer, n_max=most) if size else trainer

    return replace(problem, trainers=tuple(map(bound, problem.trainers)))


def _at_rest(records: Iterable[TrainerRecord], now_s: float) -> list[TrainerRecord]:
    return [record for record in records if now_s < record.rests_until_s]


def _decided(
    problem: Problem, policy: AllocationPolicy, draft: Draft, kept: Mapping[str, str]
) -> Decided:
    given = draft.given
    owners = claims.owners_of(draft.pool, given)
    admission = Admission(
        settings=given.settings,
        now_s=given.now_s,
        records={record.trainer_id: record for record in given.trainers},
        usage=draft.memory.usage,
        kept=tuple(sorted(set(kept.values()))),
    )
    answer = partial(_answer, policy=policy, draft=draft, admission=admission)
    if not owners.pilots:
        return answer(problem)
    return claims.cheapest(problem, answer, owners, claims.swap_s(draft.memory.ends))


def _answer(
    problem: Problem, policy: AllocationPolicy, draft: Draft, admission: Admission
) -> Decided:
    given = draft.given
    context = policy_answer.context_of(given, policy)
    solve = partial(
        policy_answer.allocate, policy=policy, given=given, context=context, admission=admission
    )
    if policy.traits.rescales:
        decided = slow_nodes.allocate(problem, solve, draft.memory, given)
    else:
        decided = solve(problem)
    # A trainer whose slow nodes were hidden from the policy may train after all.
    trains = set(given.training.values())
    dropped = {t: why for t, why in decided.dropped.items() if t not in trains}
    allocation = _as_planned(decided.allocation, problem, draft)
    wakes_s = [record.rests_until_s for record in _at_rest(given.trainers, given.now_s)]
    if decided.wake_at_s is not None:
        wakes_s.append(decided.wake_at_s)
    wake_at_s = min(wakes_s, default=None)
    return replace(decided, allocation=allocation, dropped=dropped, wake_at_s=wake_at_s)


def _as_planned(allocation: Allocation, problem: Problem, draft: Draft) -> Allocation:
    """Exchange nodes on which no trainer goes on, so that they stay with the trainer planned there.

    Sizes are unchanged. A trainer that grows gets what another gives up rather than the node on
    which a third one starts. A node that ends within the forward-looking time moves if its trainer
    gets one that lasts longer than this one will have lasted since it began to start there.
    """
    planned, training = draft.memory.assignment, draft.given.training
    go_on = dict(training.items() & allocation.assignment.items())
    nodes = {node.name: node for node in problem.nodes if node.name not in go_on}
    elsewhere = training.keys() | draft.memory.slow_nodes.keys()
    theirs = sorted(planned.keys() & nodes.keys() - elsewhere)
    stays = {name: planned[name] for name in theirs}
    if stays.items() <= allocation.assignment.items():
        return allocation
    lasts_s = _lasts_s(draft, problem, [nodes[name] for name in theirs])
    offered_s: dict[str, float] = {}  # the new node of a trainer that lasts longest
    for name, trainer_id in allocation.assignment.items():
        if name in nodes and planned.get(name) != trainer_id:
            remaining_s = _remaining_s(nodes[name], problem)
            offered_s[trainer_id] = max(remaining_s, offered_s.get(trainer_id, 0.0))
    stays = {n: t for n, t in stays.items() if lasts_s[n] >= offered_s.get(t, 0.0)}
    for is_any_type in (True, False):
        kinds = {n: "" if is_any_type else node.eligibility for n, node in nodes.items()}
        found = _exchanged(allocation.assignment, stays, kinds)
        exchanged = replace(allocation, assignment=found)
        if find_violations(problem, exchanged) == find_violations(problem, allocation):
            return exchanged  # as good, and valid
    return allocation


def _exchanged(
    assignment: Mapping[str, str], stays: Mapping[str, str], kinds: Mapping[str, str]
) -> dict[str, str]:
    """Give each trainer as many nodes of a kind as it has, planned ones first."""
    free = {name: trainer_id for name, trainer_id in assignment.items() if name in kinds}
    wants = Counter((trainer_id, kinds[name]) for name, trainer_id in free.items())
    found = {name: trainer_id for name, trainer_id in assignment.items() if name not in kinds}
    agreed = dict(stays.items() & free.items())
    for choice in (agreed, stays, free):  # in order of preference
        for name in sorted(choice.keys() - found.keys()):
            want = choice[name], kinds[name]
            if wants[want]:
                wants[want] -= 1
                found[name] = choice[name]
    left = sorted(free.keys() - found.keys())
    for trainer_id, kind in sorted(wants.elements()):
        name = next(n for n in left if kinds[n] == kind)
        left.remove(name)
        found[name] = trainer_id
    return found


def _lasts_s(draft: Draft, problem: Problem, nodes: Iterable[ProblemNode]) -> dict[str, float]:
    """Return how long each node lasts, counted from when its trainer began to start there."""
    since_s = {pilot.node: pilot.requested_s for pilot in draft.given.pilots}
    since_s.update(draft.memory.joining.since_s)
    now_s = draft.given.now_s
    return {n.name: _remaining_s(n, problem) + now_s - since_s.get(n.name, now_s) for n in nodes}


def _remaining_s(node: ProblemNode, problem: Problem) -> float:
    """Return how long a node lasts; beyond the forward-looking time it makes no difference."""
    remaining_s = node.expected_remaining_s
    return problem.t_fwd_s if remaining_s is None else min(remaining_s, problem.t_fwd_s)
