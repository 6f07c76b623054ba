"""Explains why a trainer has its size, from the plan and the records. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bftrainer.daemon.explain.reserve import true_cause
from bftrainer.daemon.explain.shares import fair_share_sentences, limit_sentences
from bftrainer.daemon.explain.startable import cannot_start
from bftrainer.decide.exclusion_words import why_left_out
from bftrainer.decide.policies.base import in_order
from bftrainer.model.cluster import Node
from bftrainer.model.decision import Plan, Settings
from bftrainer.model.trainer import TrainerRecord, TrainerState
from milp.problem import Allocation


def explain_trainer(
    record: TrainerRecord,
    plan: Plan | None,
    settings: Settings,
    queue: Sequence[TrainerRecord],
    nodes: Sequence[Node],
    observed_size: int,
    now_s: float = 0.0,
) -> tuple[str, ...]:
    """Return the reasons, most important first.

    Args:
        record: the trainer.
        plan: the last decision; None: not yet.
        settings: of the policy.
        queue: all trainers that are not final, in FCFS order.
        nodes: of the last snapshot.
        observed_size: members of its current generation.
        now_s: of the decision; 0: it is not said how long it has waited.
    """
    if record.state.is_final:
        failures = f" Failures in all: {record.failures}." if record.failures else ""
        return (f"It is {record.state.value}: {record.reason}{failures}",)
    if plan is None:
        return ("No decision has been taken yet; the daemon has just started.",)
    if not plan.pool and plan.allocation is None and not plan.reserve and plan.not_used:
        unknown = next(iter(plan.not_used.values()))
        if "did not answer" in unknown:
            return (unknown,)
    planned = sum(1 for t in plan.assignment.values() if t == record.trainer_id)
    left_out = why_left_out(record.trainer_id, plan.memory.left_out)
    sentences = [*left_out] or _size_sentences(record, plan, settings, queue, nodes, planned)
    if not (planned or observed_size) and now_s:
        sentences += _wait(record, plan, settings, now_s)
    if planned != observed_size:
        sentences.append(
            f"It is on its way from {observed_size} to {planned} nodes: agents and joiners"
            " start while the others train."
        )
    if coming := sum(1 for t in plan.swaps.values() if t == record.trainer_id):
        sentences.append(
            f"{coming} more come from other users: their pilots leave, then its own start."
        )
    if record.state is TrainerState.PARKED:
        sentences.append(record.reason)
    return tuple(sentences)


def _wait(record: TrainerRecord, plan: Plan, settings: Settings, now_s: float) -> list[str]:
    """Say since when a trainer has no nodes, and who has them."""
    since_s = record.progress.reported_s or record.submitted_s
    sizes = Counter(plan.assignment.values())
    if not sizes or now_s - since_s < 60.0:
        return []
    who = ", ".join(f"{one} ({count})" for one, count in sizes.most_common(3))
    more = f" and {len(sizes) - 3} others" if len(sizes) > 3 else ""
    waits = f"It has had no nodes for {(now_s - since_s) / 60.0:.0f} min; they go to {who}{more}."
    if settings.max_wait_s is None:
        return [waits, "The site bounds no waits (max_wait_s)."]
    bound = f"After {settings.max_wait_s / 60.0:.0f} min of waiting it gets its n_min (max_wait_s)."
    return [waits, bound]


def _size_sentences(
    record: TrainerRecord,
    plan: Plan,
    settings: Settings,
    queue: Sequence[TrainerRecord],
    nodes: Sequence[Node],
    planned: int,
) -> list[str]:
    stuck = cannot_start(queue, plan.pool, nodes, plan.assignment)
    if not planned and record.trainer_id in stuck:
        keeps = "It keeps its place; trainers behind it may run meanwhile (skip_unstartable)."
        skips = [keeps] if settings.skip_unstartable else []
        return [stuck[record.trainer_id], *skips, *_idle(plan, settings)]
    limited = limit_sentences(record, plan, settings, queue)
    waits = limited or fair_share_sentences(record, plan, settings, queue)
    if waits and not planned:
        return waits
    passed_over = stuck if settings.skip_unstartable else {}
    in_line = [r.trainer_id for r in queue if r.trainer_id not in passed_over]
    in_line = in_order(in_line, plan.order)
    position = in_line.index(record.trainer_id) + 1 if record.trainer_id in in_line else 0
    if position > settings.p_jmax:
        return [
            (
                f"It is number {position} in the queue and the policy runs {settings.p_jmax}"
                " trainers at once (p_jmax)."
            )
        ]
    if plan.trouble:
        return [plan.trouble, "Until this is fixed, every trainer keeps its nodes."]
    return _of_size(record, plan, settings, planned, limited)


def _of_size(
    record: TrainerRecord, plan: Plan, settings: Settings, planned: int, limited: list[str]
) -> list[str]:
    """Say why it has this many nodes; ``limited``: by which limits."""
    pool = len(plan.pool)
    if planned == record.spec.n_max:
        return [f"It has its maximum of {planned} nodes (n_max)."]
    if plan.allocation is None:
        return [f"The pool is empty ({pool} nodes).", *_idle(plan, settings)]
    return [
        *limited,
        *_worth(record, plan.allocation, settings, planned, pool),
        *_idle(plan, settings),
    ]


def _worth(
    record: TrainerRecord, allocation: Allocation, settings: Settings, planned: int, pool: int
) -> list[str]:
    if allocation.solver == settings.policy:  # nothing was priced
        return [f"The policy {settings.policy} gives it {planned} of the pool's {pool} nodes."]
    sentences = [
        (
            f"The pool has {pool} nodes; {planned} of them are worth most here"
            f" over the next {settings.t_fwd_s:.0f} s."
        )
    ]
    marginal = allocation.marginals.get(record.trainer_id)
    if marginal and marginal.gain_of_one_more is not None:
        sentences.append(_of_one_more(marginal.gain_of_one_more, allocation.node_price))
    return sentences


def _of_one_more(gain: float, price: float) -> str:
    """Say why it has not one node more; the unit of both figures cancels out."""
    if gain <= 0.0:
        return "With one node more it would lose more by the rescale than it gains in that time."
    if price > gain:
        return f"One node more would gain it {gain / price:.0%} of what a node gains elsewhere."
    return "One node more would gain it as much as elsewhere, and none is left."


def _idle(plan: Plan, settings: Settings) -> list[str]:
    reasons: dict[str, int] = {}
    for reason in [true_cause(why, plan, settings) for why in plan.not_used.values()]:
        reasons[reason] = reasons.get(reason, 0) + 1
    return [
        f"{count} node{'s are' if count > 1 else ' is'} not in the pool: {reason}"
        for reason, count in sorted(reasons.items(), key=lambda kv: -kv[1])[:3]
    ]
