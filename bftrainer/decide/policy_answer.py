"""Asks the policy through the constraints, and checks its answer before it is used.

A policy gets more than the problem (``Context``) and may answer with more than an allocation
(``Decided``). What an answer must meet whatever the policy is, is an ordered list of constraints
(``constraints.chain``). A rejected answer leaves no trace. Called by ``allocation``. Pure, whatever
a policy does to its input.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Final

from bftrainer.decide.constraints.admission import Admission
from bftrainer.decide.constraints.caps import WithinCaps
from bftrainer.decide.constraints.chain import Constraint, chained
from bftrainer.decide.constraints.planned import AsPlanned
from bftrainer.decide.constraints.rests import Rests
from bftrainer.decide.constraints.size_sets import InSizes
from bftrainer.decide.constraints.swaps import Owners, PricedSwaps, swap_s
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
from bftrainer.model.decision import DecisionInput, Memory
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import TrainerRecord
from milp.check import find_violations
from milp.problem import Objective, Problem

_MOST_STANDINGS: Final = 4096
# The last one of each trainer: those that wait do not change between decisions.
_STANDINGS: dict[str, tuple[TrainerRecord, Standing]] = {}


def decided(
    problem: Problem,
    policy: AllocationPolicy,
    given: DecisionInput,
    memory: Memory,
    owners: Owners,
    kept: Iterable[str],
) -> Decided:
    """Return the answer to the problem of a decision, through all constraints.

    Args:
        problem: of this decision.
        policy: that is asked.
        given: what the problem was made of.
        memory: with what this decision has observed.
        owners: users of pilots and trainers.
        kept: trainers with nodes that the problem lacks.

    Raises:
        milp.problem.ProblemError: the problem is malformed.
        BftError: BFT-3054, an answer is not valid; BFT-3053, the policy lacks an option.
    """
    context = context_of(given, policy)
    constraints = constraints_of(problem, policy, given, memory, owners, kept)
    return chained(constraints, partial(_answer, policy, context))(problem)


def ask(policy: AllocationPolicy, problem: Problem, context: Context) -> Decided:
    """Return the policy's answer, within caps and sets of sizes; see ``_answer``."""
    return chained(_of_policy(policy), partial(_answer, policy, context))(problem)


def constraints_of(
    problem: Problem,
    policy: AllocationPolicy,
    given: DecisionInput,
    memory: Memory,
    owners: Owners,
    kept: Iterable[str],
) -> list[Constraint]:
    """Return the constraints between a decision's problem and a policy, the first one outermost.

    Arguments as of ``decided``.
    """
    settings, budget, traits = given.settings, given.settings.explore_budget, policy.traits
    constraints: list[Constraint] = [Rests(given=given)]
    if owners.pilots:
        constraints.append(PricedSwaps(owners=owners, swap_s=swap_s(memory.ends)))
    constraints.append(AsPlanned(given=given, memory=memory))
    if traits.rescales:
        constraints.append(WithSlowNodes(memory=memory, given=given))
    constraints.append(
        Admission(
            settings=settings,
            now_s=given.now_s,
            records={record.trainer_id: record for record in given.trainers},
            usage=memory.usage,
            kept=tuple(sorted(kept)),
        )
    )
    if problem.objective is Objective.THROUGHPUT or traits.reads_rates:
        constraints.append(ComparableRates(records=given.trainers, is_bold=budget > 0.0))
    if budget > 0.0 and traits.follows_curves:
        constraints.append(Explores(records=given.trainers, budget=budget))
    return [*constraints, *_of_policy(policy)]


def _of_policy(policy: AllocationPolicy) -> list[Constraint]:
    """Return the constraints that the policy does not keep by itself."""
    constraints: list[Constraint] = []
    if not policy.traits.keeps_caps:
        constraints.append(WithinCaps())
    if not policy.traits.keeps_sizes:
        constraints.append(InSizes())
    return constraints


def context_of(given: DecisionInput, policy: AllocationPolicy) -> Context:
    """Return the context of a policy.

    Raises:
        OptionError: BFT-3053, its options are not those that it declares.
    """
    return Context(
        now_s=given.now_s,
        seed=given.seed,
        options=options_of(policy, given.settings.policy_options),
        state=given.memory.policy_state,
        trainers=MappingProxyType({r.trainer_id: _standing(r) for r in given.trainers}),
    )


def _standing(record: TrainerRecord) -> Standing:
    entry = _STANDINGS.get(record.trainer_id)
    if entry is not None and entry[0] is record:
        return entry[1]
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
    trainers = {trainer.trainer_id: trainer for trainer in problem.trainers}
    order, dropped, wake_at_s = decided.order, decided.dropped, decided.wake_at_s
    violations = [f"{name} is not a trainer" for name in (*order, *dropped) if name not in trainers]
    if len(set(order)) < len(order):
        violations.append("the order names a trainer twice")
    if violations:
        return violations
    if order:
        entering = tuple([trainers[name] for name in in_order(trainers, order)])
        problem = replace(problem, trainers=entering)
    sizes = decided.allocation.sizes()
    violations += [
        f"trainer {name} is dropped, but has nodes"
        for name in dropped
        if trainers[name].current or name in sizes
    ]
    if wake_at_s is not None and wake_at_s <= now_s:
        violations.append(f"wake_at_s {wake_at_s!r} is not later than now ({now_s!r})")
    return violations + find_violations(problem, decided.allocation)
