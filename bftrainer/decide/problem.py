"""States the allocation problem of a decision: records, nodes and settings as ``milp.problem``.

A trainer has (C_j) the nodes on which it trains and those on which its workers start; only what
trains pauses at a rescale. Without the latter a trainer that starts would lose its nodes to another
one, for which they are worth a little more, whenever the pool changes, and begin again and again:
where warm-ups are as long as nodes stay, half of the work was lost. For a policy that never
rescales a trainer has a start only once it trains: the others' size is not chosen yet. All other
nodes count as free. Called by ``allocation`` and ``victims``. Pure.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from bftrainer.decide import losses
from bftrainer.decide.constraints.caps import of_groups
from bftrainer.decide.eligible import suited
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.throughput.curves import fitted
from bftrainer.decide.warm_up import warm_up_s
from bftrainer.model.assignments import nodes_by_trainer
from bftrainer.model.census import census_of
from bftrainer.model.cluster import PART_MARK, node_of
from bftrainer.model.decision import DecisionInput, Memory, Pool, PoolNode, Settings
from bftrainer.model.lookups import by_trainer
from bftrainer.model.parts import most_units, n_gpus_of_host, smallest_lending_host
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord, TrainerSpec
from milp.problem import Problem, ProblemNode, ProblemTrainer
from milp.worth import rate

_MOST_STATED: Final = 1 << 13  # more trainers than a daemon has, studies of thousands among them
# By trainer_id the last result and what it was made of: most do not change between decisions.
# Compared by identity, because to hash or compare a whole record costs more than to make it.
_STATED: dict[str, tuple[TrainerSpec, MeasuredCosts, Settings, int, ProblemTrainer]] = {}


@lru_cache(maxsize=1 << 14)  # mostly the same nodes in every decision
def problem_node(
    name: str, gpus: int = 0, remaining_s: float | None = None, *, has_pilot: bool = False
) -> ProblemNode:
    """Return the node for the allocation problem."""
    return ProblemNode(name=name, gpus=gpus, has_pilot=has_pilot, expected_remaining_s=remaining_s)


@lru_cache(maxsize=1 << 15)  # likewise
def part_node(
    name: str, gpus: int, remaining_s: float | None, host_width: int, *, has_pilot: bool
) -> ProblemNode:
    """Return a part of a host for the allocation problem.

    A unit that was made of free GPUs (``carving``) counts as one that a pilot has: it is one whole.
    """
    return ProblemNode(
        name=name,
        gpus=gpus,
        has_pilot=has_pilot or gpus > 1,
        expected_remaining_s=remaining_s,
        host=node_of(name),
        width=gpus,
        host_width=host_width,
    )


def problem_trainer(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...] = (),
    host_gpus: int = 0,
) -> ProblemTrainer:
    """Return the trainer for the allocation problem.

    Args:
        record: the trainer.
        current: the nodes on which it trains, and those on which its workers start.
        settings: of the decision.
        settled: those on which it trains.
        host_gpus: GPUs of the smallest host whose GPUs are lent one by one; 0: there is none.
    """
    if entry := _STATED.get(record.trainer_id):
        spec, costs, its_settings, its_host_gpus, trainer = entry
        is_same = spec is record.spec and costs is record.costs and its_settings is settings
        is_same = is_same and its_host_gpus == host_gpus
        if is_same and (trainer.current, trainer.settled) == (current, settled):
            return trainer
    trainer = make_problem_trainer(record, current, settings, settled, host_gpus)
    if len(_STATED) >= _MOST_STATED:
        _STATED.clear()
    _STATED[record.trainer_id] = record.spec, record.costs, settings, host_gpus, trainer
    return trainer


def make_problem_trainer(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...],
    host_gpus: int = 0,
) -> ProblemTrainer:
    """Return the same, and remember nothing: for questions that no decision asks."""
    spec, costs = record.spec, record.costs
    limit = settings.max_nodes_per_trainer
    up_s, down_s = costs.rescale_up_s, costs.rescale_down_s
    if up_s is None:
        up_s = settings.rescale_up_guess_s
    if down_s is None:
        down_s = settings.rescale_down_guess_s
    n_max = spec.n_max
    if limit is not None:  # never below n_min: submissions are checked, a policy may have changed
        limit = most_units(limit, spec.gpus_per_unit, host_gpus)
        n_max = max(spec.n_min, min(n_max, limit))
    trainer = ProblemTrainer(
        trainer_id=record.trainer_id,
        n_min=spec.n_min,
        n_max=n_max,
        sizes=spec.sizes,
        curve=fitted(record, explores=settings.explore_budget > 0.0).curve,
        rescale_up_s=up_s,
        rescale_down_s=down_s,
        current=current,
        settled=settled,
        weight=spec.weight,
        utility=spec.utility,
        width=spec.gpus_per_unit,
    )
    if len(settled) == len(current):
        return trainer
    # The problem charges the rate of all that is current; only what trains pauses.
    rate_held = rate(trainer, len(current), settings.objective)
    share = 1.0
    if rate_held:
        share = rate(trainer, len(settled), settings.objective) / rate_held
    return replace(
        trainer,
        rescale_up_s=trainer.rescale_up_s * share,
        rescale_down_s=trainer.rescale_down_s * share,
    )


def of_pool(
    given: DecisionInput,
    memory: Memory,
    pool: Pool,
    policy: AllocationPolicy | None,
    names: AbstractSet[str],
    kept: Mapping[str, str],
) -> Problem | None:
    """State the allocation problem; ``None`` when there is nothing to allocate.

    Args:
        given: everything the decision depends on.
        memory: with what this decision has observed.
        pool: the usable nodes.
        policy: that is asked; None: it is only for turns.
        names: the nodes of the pool that are allocated.
        kept: node -> trainer that keeps it, and is not in the problem.
    """
    settings, now_s = given.settings, given.now_s
    as_they_are = set(kept.values())
    trainers = given.trainers
    if as_they_are:
        trainers = tuple([r for r in trainers if r.trainer_id not in as_they_are])
    p_jmax = settings.p_jmax - len(as_they_are)
    if not trainers or not names or p_jmax < 1:
        return None
    has_starts = policy is not None and policy.traits.rescales
    expects_losses = policy is not None and policy.traits.expects_losses and settings.expects_losses
    host_gpus = smallest_lending_host(given.snapshot.nodes or ())
    problem = Problem(
        nodes=_pool_nodes(given, pool, names),
        trainers=_trainers(given, memory, trainers, names, host_gpus, has_starts=has_starts),
        t_fwd_s=settings.t_fwd_s,
        p_jmax=p_jmax,
        objective=settings.objective,
        caps=of_groups(
            given.trainers,
            settings.limits,
            Counter(kept.values()),
            host_gpus,
        ),
    )
    joining_s = warm_up_s(memory.joining, settings.t_fwd_s, now_s)
    problem_of_suited = suited(problem, given, joining_s)
    if problem_of_suited is None or not expects_losses:
        return problem_of_suited
    return _with_losses(problem_of_suited, given, memory)


def of_held(given: DecisionInput, memory: Memory) -> Problem:
    """State the current assignment as a problem; only held nodes count."""
    settings = given.settings
    nodes: list[ProblemNode] = []
    held_nodes = set[str]()
    for pilot in given.pilots:
        # Only the order of the ends matters here, so absolute times serve as well.
        nodes.append(problem_node(pilot.node, remaining_s=pilot.end_s))
        if pilot.is_held and not pilot.is_leaving:
            held_nodes.add(pilot.node)
    nodes_of = nodes_by_trainer(memory.assignment, held_nodes)
    host_gpus = smallest_lending_host(given.snapshot.nodes or ())
    trainers: list[ProblemTrainer] = []
    for record in given.trainers:
        its_nodes = nodes_of.get(record.trainer_id)
        if its_nodes is not None:
            trainers.append(_of_held(record, its_nodes, given, host_gpus))
    return Problem(
        nodes=tuple(nodes),
        trainers=tuple(trainers),
        t_fwd_s=settings.t_fwd_s,
        p_jmax=settings.p_jmax,
        objective=settings.objective,
    )


def _of_held(
    record: TrainerRecord, own: tuple[str, ...], given: DecisionInput, host_gpus: int
) -> ProblemTrainer:
    settled = tuple([node for node in own if given.training.get(node) == record.trainer_id])
    # Which of the units it has are given up, is asked by name: they are whole as they are.
    return replace(problem_trainer(record, own, given.settings, settled, host_gpus), width=0)


def _pool_nodes(
    given: DecisionInput, pool: Pool, names: AbstractSet[str]
) -> tuple[ProblemNode, ...]:
    by_name = census_of(given.snapshot).by_name
    nodes: list[ProblemNode] = []
    for node in pool.nodes:
        if node.name not in names:
            continue
        host_width = 0
        if PART_MARK in node.name:
            host_width = n_gpus_of_host(by_name[node.name])
        nodes.append(_pool_node(node, given.now_s, host_width))
    return tuple(nodes)


def _pool_node(node: PoolNode, now_s: float, host_width: int) -> ProblemNode:
    """Return a node of the pool; ``host_width``: GPUs of the host of a part, 0 of a whole node."""
    has_pilot = bool(node.pilot_id)
    if node.usable_until_s is None:
        if host_width:
            return part_node(node.name, node.gpus, None, host_width, has_pilot=has_pilot)
        return problem_node(node.name, node.gpus, has_pilot=has_pilot)
    left_s = max(0.0, node.usable_until_s - now_s)  # another in every decision
    if host_width:
        make = part_node.__wrapped__
        return make(node.name, node.gpus, left_s, host_width, has_pilot=has_pilot)
    return problem_node.__wrapped__(node.name, node.gpus, left_s, has_pilot=has_pilot)


def _trainers(
    given: DecisionInput,
    memory: Memory,
    records: tuple[TrainerRecord, ...],
    names: AbstractSet[str],
    host_gpus: int,
    *,
    has_starts: bool,
) -> tuple[ProblemTrainer, ...]:
    """Return the trainers with the nodes on which they train, and those on which they start."""
    training = nodes_by_trainer(given.training, names)
    starts = names & memory.joining.since_s.keys() - given.training.keys()
    starting = nodes_by_trainer(memory.assignment, starts)
    trainers = list[ProblemTrainer]()
    for record in records:
        settled = current = training.get(record.trainer_id, ())
        if settled or has_starts:
            current = (*settled, *starting.get(record.trainer_id, ()))
        trainers.append(problem_trainer(record, current, given.settings, settled, host_gpus))
    return tuple(trainers)


def _with_losses(problem: Problem, given: DecisionInput, memory: Memory) -> Problem:
    """Return the problem with curves that count losses of nodes, for a policy that expects them."""
    life_node_s = losses.life_s(memory.losses, given.now_s)
    if math.isinf(life_node_s):
        return problem
    records = by_trainer(given.trainers)
    with_losses = partial(
        losses.expected,
        settings=given.settings,
        life_node_s=life_node_s,
        n_nodes=len(problem.nodes),
    )
    trainers: list[ProblemTrainer] = []
    for trainer in problem.trainers:
        record = records[trainer.trainer_id]
        trainers.append(with_losses(trainer, record))
    return replace(problem, trainers=tuple(trainers))
