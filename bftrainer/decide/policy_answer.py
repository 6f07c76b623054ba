"""States the problem for the policy, asks for an answer, and checks it before it is used.

Records, nodes and settings become a problem (``milp.problem``). A policy gets more than that
(``Context``) and may answer with more than an allocation (``Decided``). Because curves are
uncertain, sizes that improve them are preferred within the administrator's budget
(``throughput.explore``). A rejected answer leaves no trace. Called by ``allocation`` and
``victims``. Pure, whatever a policy does to its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import replace
from functools import lru_cache, partial
from types import MappingProxyType

from bftrainer.decide.admission import Admission, in_sizes, within
from bftrainer.decide.policies.base import (
    AllocationPolicy,
    Context,
    Decided,
    Standing,
    in_order,
    options_of,
)
from bftrainer.decide.throughput.curves import fitted, is_known, points_of, put_to_scale
from bftrainer.decide.throughput.explore import explore
from bftrainer.model.canonical import to_plain
from bftrainer.model.decision import DecisionInput, Settings
from bftrainer.model.errors import BftError
from bftrainer.model.trainer import MeasuredCosts, TrainerRecord, TrainerSpec
from milp.check import find_violations
from milp.problem import Allocation, Objective, Problem, ProblemNode, ProblemTrainer
from milp.worth import rate


def nodes_by_trainer(
    assignment: Mapping[str, str], names: AbstractSet[str]
) -> dict[str, tuple[str, ...]]:
    """Return each trainer's nodes among ``names``, sorted."""
    found: dict[str, list[str]] = {}
    for name in sorted(assignment.keys() & names):
        found.setdefault(assignment[name], []).append(name)
    return {trainer_id: tuple(own) for trainer_id, own in found.items()}


@lru_cache(maxsize=1 << 14)  # mostly the same nodes in every decision
def problem_node(
    name: str, gpus: int = 0, remaining_s: float | None = None, *, has_pilot: bool = False
) -> ProblemNode:
    """Return the node for the allocation problem."""
    return ProblemNode(name=name, gpus=gpus, has_pilot=has_pilot, expected_remaining_s=remaining_s)


def problem_trainer(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...] = (),
) -> ProblemTrainer:
    """Return the trainer for the allocation problem."""
    if known := _STATED.get(record.trainer_id):
        spec, costs, its_settings, made = known
        is_same = spec is record.spec and costs is record.costs and its_settings is settings
        if is_same and (made.current, made.settled) == (current, settled):
            return made
    made = make_problem_trainer(record, current, settings, settled)
    if len(_STATED) >= _MOST_STATED:
        _STATED.clear()
    _STATED[record.trainer_id] = record.spec, record.costs, settings, made
    return made


_MOST_STATED = 1 << 13  # more trainers than a daemon has, studies of thousands among them
# By trainer_id the last result and what it was made of: most do not change between decisions.
# Compared by identity, because to hash or compare a whole record costs more than to make it.
_STATED: dict[str, tuple[TrainerSpec, MeasuredCosts, Settings, ProblemTrainer]] = {}


def make_problem_trainer(
    record: TrainerRecord,
    current: tuple[str, ...],
    settings: Settings,
    settled: tuple[str, ...],
) -> ProblemTrainer:
    """Return the same, and remember nothing: for questions that no decision asks."""
    spec, costs = record.spec, record.costs
    limit = settings.max_nodes_per_trainer
    up, down = costs.rescale_up_s, costs.rescale_down_s
    made = ProblemTrainer(
        trainer_id=record.trainer_id,
        n_min=spec.n_min,
        # Never below n_min: submissions are checked, a policy may have changed since.
        n_max=spec.n_max if limit is None else max(spec.n_min, min(spec.n_max, limit)),
        sizes=spec.sizes,
        curve=fitted(record, explores=settings.explore_budget > 0.0).curve,
        rescale_up_s=settings.rescale_up_guess_s if up is None else up,
        rescale_down_s=settings.rescale_down_guess_s if down is None else down,
        current=current,
        settled=settled,
        weight=spec.weight,
        utility=spec.utility,
    )
    if len(settled) == len(current):
        return made
    # The problem charges the rate of all that is current; only what trains pauses.
    held = rate(made, len(current), settings.objective)
    share = rate(made, len(settled), settings.objective) / held if held else 1.0
    return replace(
        made,
        rescale_up_s=made.rescale_up_s * share,
        rescale_down_s=made.rescale_down_s * share,
    )


def allocate(
    problem: Problem,
    policy: AllocationPolicy,
    given: DecisionInput,
    context: Context,
    admission: Admission,
) -> Decided:
    """Decide on the allocation; the policy's state is that of its answer to the estimated curves.

    Where some are left out (``admission``), the order of the answer has those that take part.

    Raises:
        milp.problem.ProblemError: the problem is malformed.
        BftError: BFT-3054, an answer is not valid.
    """
    trainers, budget = given.trainers, given.settings.explore_budget
    stated, problem = problem, admission.admit(problem)
    admitted = problem.trainers[: problem.p_jmax] if problem is not stated else ()
    if problem.objective is Objective.THROUGHPUT or policy.traits.reads_rates:
        problem = put_to_scale(problem, trainers, is_bold=budget > 0.0)
    best = ask(policy, problem, context)
    if not best.order:
        best = replace(best, order=tuple([trainer.trainer_id for trainer in admitted]))
    if (turn_s := admission.wake_at_s(problem)) is not None:
        best = replace(best, wake_at_s=min(best.wake_at_s or turn_s, turn_s))
    if budget <= 0.0 or not policy.traits.follows_curves:
        return best

    terms = best.terms

    def again(offered: Problem) -> Allocation:
        nonlocal terms
        other = ask(policy, offered, context)
        terms = other.terms
        return other.allocation

    errors = {r.trainer_id: fitted(r, explores=True).error_at for r in trainers}
    found = explore(problem, best.allocation, again, errors, budget)
    if found is best.allocation:
        return best
    return replace(best, allocation=found, terms=terms)


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
    known = _KNOWN.get(record.trainer_id)
    if known is not None and known[0] is record:
        return known[1]
    made = _make_standing(record)
    if len(_KNOWN) >= _MOST_KNOWN:
        _KNOWN.clear()
    _KNOWN[record.trainer_id] = record, made
    return made


_MOST_KNOWN = 4096
# The last one of each trainer: those that wait do not change between decisions.
_KNOWN: dict[str, tuple[TrainerRecord, Standing]] = {}


def _make_standing(record: TrainerRecord) -> Standing:
    done, goal = record.progress.samples, record.spec.samples
    if record.spec.steps is not None:  # its worker counts them in samples, by its global batch
        goal = record.progress.total or None
    return Standing(
        submitted_s=record.submitted_s,
        attained_node_s=record.progress.node_s,
        done_samples=done,
        left_samples=None if goal is None else max(0, goal - done),
        points=points_of(record.costs),
        has_rates=is_known(record),
    )


def ask(policy: AllocationPolicy, problem: Problem, context: Context) -> Decided:
    """Return the policy's answer, within caps and sets of sizes; see ``_answer``."""
    answer = partial(_answer, policy, context=context)
    if not policy.traits.keeps_sizes and any(trainer.sizes for trainer in problem.trainers):
        answer = partial(in_sizes, ask=answer)
    is_plain = not (problem.caps or any(trainer.must_run for trainer in problem.trainers))
    if is_plain or policy.traits.keeps_caps:
        return answer(problem)
    return within(problem, answer)


def _answer(policy: AllocationPolicy, problem: Problem, context: Context) -> Decided:
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
    found = [f"{name} is not a trainer" for name in (*order, *dropped) if name not in trainers]
    if len(set(order)) < len(order):
        found.append("the order names a trainer twice")
    if found:
        return found
    if order:
        entering = tuple([trainers[name] for name in in_order(trainers, order)])
        problem = replace(problem, trainers=entering)
    sizes = decided.allocation.sizes()
    found += [
        f"trainer {name} is dropped, but has nodes"
        for name in dropped
        if trainers[name].current or name in sizes
    ]
    if wake_at_s is not None and wake_at_s <= now_s:
        found.append(f"wake_at_s {wake_at_s!r} is not later than now ({now_s!r})")
    return found + find_violations(problem, decided.allocation)
