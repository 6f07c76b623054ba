"""Asks the policy through the constraints, and checks its answer before it is used.

A policy gets more than the problem (``Context``) and may answer with more than an allocation
(``Decided``). What an answer must meet whatever the policy is, is an ordered list of constraints
(``constraints.chain``). A rejected answer leaves no trace. Called by ``allocation``. Pure, whatever
a policy does to its input.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from bftrainer.decide.constraints.admission import Admission
from bftrainer.decide.constraints.arrivals import AwaitedReplacements, AwaitedSwaps
from bftrainer.decide.constraints.caps import WithinCaps
from bftrainer.decide.constraints.chain import Described, OnProblem, chained
from bftrainer.decide.constraints.holds import CoolingNodes, RescaleBudgets, Turns
from bftrainer.decide.constraints.offer import Offer, OnPool, Settlement
from bftrainer.decide.constraints.planned import AsPlanned
from bftrainer.decide.constraints.rests import Rests
from bftrainer.decide.constraints.size_sets import InSizes
from bftrainer.decide.constraints.swaps import PricedSwaps, owners_of, swap_s
from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Standing,
    in_order,
    options_of,
)
from bftrainer.decide.slow_nodes import WithSlowNodes
from bftrainer.decide.throughput.curves import ComparableRates, is_known, points_of
from bftrainer.decide.throughput.explore import Explores
from bftrainer.model.canonical import to_plain
from bftrainer.model.decision import DecisionInput
from bftrainer.model.errors import BftError
from bftrainer.model.lookups import by_trainer
from bftrainer.model.trainer import TrainerRecord
from milp.check import find_violations
from milp.problem import Objective, Problem

_MOST_STANDINGS: Final = 4096
# The last one of each trainer: those that wait do not change between decisions.
_STANDINGS: dict[str, tuple[TrainerRecord, Standing]] = {}


def allocated(
    offer: Offer, without: AbstractSet[str] = frozenset(), changed: list[Described] | None = None
) -> Settlement:
    """Return what becomes of a decision's pool, through all constraints.

    Args:
        offer: the pool, and what the decision depends on.
        without: names of constraints that are left out, to tell what they do.
        changed: gets those that change a question or an answer, the innermost first.

    Raises:
        milp.problem.ProblemError: the problem is malformed.
        BftError: BFT-3054, an answer is not valid; BFT-3053, the policy lacks an option.
    """
    of_policy = partial(_allocated, without=without, changed=changed)
    return chained(on_pool(offer), of_policy, without, changed)(offer)


def ask(policy: AllocationPolicy, problem: Problem, context: Context) -> Decided:
    """Return the policy's answer, within caps and sets of sizes; see ``_answer``."""
    return chained(_on_any(policy, problem), partial(_answer, policy, context))(problem)


def on_pool(offer: Offer) -> list[OnPool]:
    """Return the constraints that see the pool, the first one outermost.

    Those that bind nothing in this decision are not among them.
    """
    memory, owners = offer.memory, owners_of(offer.pool, offer.given)
    constraints: list[OnPool] = []
    if owners.pilots:
        constraints.append(AwaitedSwaps(owners=owners))
    if memory.slow_nodes or memory.replacing:
        constraints.append(AwaitedReplacements())
    if offer.policy is None:
        return constraints
    if offer.given.cooling:
        constraints.append(CoolingNodes())
    if offer.given.settled_until_s:
        constraints.append(RescaleBudgets())
    if memory.waits:
        constraints.append(Turns())
    return constraints


def on_problem(offer: Offer, problem: Problem, policy: AllocationPolicy) -> list[OnProblem]:
    """Return the constraints between the problem of an offer and the policy, outermost first.

    Those that bind nothing in this decision are not among them.
    """
    given, memory = offer.given, offer.memory
    records = by_trainer(given.trainers)
    settings, traits, owners = given.settings, policy.traits, owners_of(offer.pool, given)
    constraints: list[OnProblem] = [Rests(given=given)]
    if owners.pilots:
        constraints.append(PricedSwaps(owners=owners, swap_s=swap_s(memory.ends)))
    constraints.append(AsPlanned(given=given, memory=memory))
    if traits.rescales and memory.slow_nodes:
        constraints.append(WithSlowNodes(memory=memory, given=given))
    constraints.append(
        Admission(
            settings=settings,
            now_s=given.now_s,
            records=records,
            usage=memory.usage,
            kept_ids=tuple(sorted(set(offer.kept_nodes.values()))),
        )
    )
    if problem.objective is Objective.THROUGHPUT or traits.reads_rates:
        is_bold = settings.explore_budget > 0.0
        constraints.append(ComparableRates(records=given.trainers, is_bold=is_bold))
    if settings.explore_budget > 0.0 and traits.follows_curves:
        constraints.append(Explores(records=given.trainers, budget=settings.explore_budget))
    return [*constraints, *_on_any(policy, problem)]


def _on_any(policy: AllocationPolicy, problem: Problem) -> list[OnProblem]:
    """Return the constraints that a problem states itself; a policy may keep them by itself."""
    traits = policy.traits
    constraints: list[OnProblem] = []
    if problem.caps or not traits.keeps_caps:
        constraints.append(WithinCaps(is_kept_by_policy=traits.keeps_caps))
    if not traits.keeps_sizes or any(trainer.sizes for trainer in problem.trainers):
        constraints.append(InSizes(is_kept_by_policy=traits.keeps_sizes))
    return constraints


def _allocated(
    offer: Offer, without: AbstractSet[str], changed: list[Described] | None
) -> Settlement:
    """Return what the policy makes of what is offered, with what trainers keep."""
    memory, policy = offer.memory, offer.policy
    if policy is None:
        in_pool = {node.name for node in offer.pool.nodes}
        assignment = {node: owner for node, owner in memory.assignment.items() if node in in_pool}
        return Settlement(assignment=assignment, memory=memory)
    problem = offer.problem()
    if problem is None:
        return Settlement(assignment=offer.kept_nodes, memory=memory)
    ask_policy = partial(_answer, policy, context_of(offer.given, policy))
    decided = chained(on_problem(offer, problem, policy), ask_policy, without, changed)(problem)
    return Settlement(
        assignment={**decided.allocation.assignment, **offer.kept_nodes},
        memory=replace(memory, policy_state=decided.state),
        decided=decided,
    )


def context_of(given: DecisionInput, policy: AllocationPolicy) -> Context:
    """Return the context of a policy.

    Raises:
        OptionError: BFT-3053, its options are not those that it declares.
    """
    standings = {record.trainer_id: _standing(record) for record in given.trainers}
    return Context(
        now_s=given.now_s,
        seed=given.seed,
        options=options_of(policy, given.settings.policy_options),
        state=given.memory.policy_state,
        trainers=MappingProxyType(standings),
    )


def _standing(record: TrainerRecord) -> Standing:
    record_before, standing = _STANDINGS.get(record.trainer_id, (None, None))
    if standing is not None and record_before is record:
        return standing
    standing = _make_standing(record)
    if len(_STANDINGS) >= _MOST_STANDINGS:
        _STANDINGS.clear()
    _STANDINGS[record.trainer_id] = record, standing
    return standing


def _make_standing(record: TrainerRecord) -> Standing:
    done_samples, goal_samples = record.progress.samples, record.spec.samples
    if record.spec.steps is not None:  # its worker counts them in samples, by its global batch
        goal_samples = record.progress.total or None
    return Standing(
        submitted_s=record.submitted_s,
        attained_node_s=record.progress.node_s,
        done_samples=done_samples,
        left_samples=None if goal_samples is None else max(0, goal_samples - done_samples),
        points=points_of(record.costs),
        has_rates=is_known(record),
    )


def _answer(policy: AllocationPolicy, context: Context, problem: Problem) -> Decided:
    """Return the policy's answer, its state as the journal keeps it.

    Raises:
        milp.problem.ProblemError: the problem is malformed.
        BftError: BFT-3054, the answer breaks the rules; BFT-2220, it cannot be serialised.
    """
    decided = policy.allocate(problem, replace(context, state=deepcopy(context.state)))
    if not isinstance(decided, Decided):
        raise _unusable(policy, f"it is a {type(decided).__name__}, not a Decided")
    # A third-party policy may return any number. Node names are checked below, terms when told.
    bare = replace(decided.allocation, assignment={})
    plain = to_plain(replace(decided, allocation=bare, terms={}))
    if violations := _violations(problem, decided, context.now_s):
        raise _unusable(policy, "; ".join(violations))
    return replace(decided, state=plain["state"])


def _unusable(policy: AllocationPolicy, why: str) -> BftError:
    return BftError(
        "BFT-3054",
        f"The answer of the policy {policy.name} is not valid: {why}.",
        "Correct the policy, or choose another one.",
    )


def _violations(problem: Problem, decided: Decided, now_s: float) -> list[str]:
    """Return which rules an answer breaks: the problem's, with trainers in the answer's order."""
    trainers = by_trainer(problem.trainers)
    order, wake_at_s = decided.order, decided.wake_at_s
    names = (*order, *decided.dropped)
    violations = [f"{name} is not a trainer" for name in names if name not in trainers]
    if len(set(order)) < len(order):
        violations.append("the order names a trainer twice")
    if violations:
        return violations
    if order:
        entering = [trainers[trainer_id] for trainer_id in in_order(trainers, order)]
        problem = replace(problem, trainers=tuple(entering))
    sizes = decided.allocation.sizes()
    for name in decided.dropped:
        if trainers[name].current or name in sizes:
            violations += [f"trainer {name} is dropped, but has nodes"]
    if wake_at_s is not None and wake_at_s <= now_s:
        violations.append(f"wake_at_s {wake_at_s!r} is not later than now ({now_s!r})")
    return violations + find_violations(problem, decided.allocation)
