"""Explains a trainer's size, from the plan and the records. Pure.

Nothing of it is journalled: the same terms follow from the decision's record. Called by ``views``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bftrainer.daemon.explain.nodes import true_cause
from bftrainer.decide import losses
from bftrainer.decide.constraints.caps import limits_on
from bftrainer.decide.eligible import Classes
from bftrainer.decide.exclusion import why_left_out
from bftrainer.decide.fair_share import patience_s, used_now
from bftrainer.decide.policies.base import in_order
from bftrainer.decide.what_if import WhatIf
from bftrainer.model.assignments import nodes_by_trainer
from bftrainer.model.cluster import Node
from bftrainer.model.columns import counted
from bftrainer.model.decision import Plan, PoolNode, Settings, Term, Terms
from bftrainer.model.lookups import by_name
from bftrainer.model.node_request import NodeRequest, asked
from bftrainer.model.size_words import size_words, units
from bftrainer.model.trainer import TrainerRecord, TrainerSpec, TrainerState
from milp.problem import Allocation, Objective

NODE_H = 3600.0
_NUMBERS = (("It is ", "They are "), ("It has ", "They have "), ("It was ", "They were "))
SHOWN_GAP = 0.0005  # of the answer's worth; below it nothing is said


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What counts more for a trainer than the last decision."""

    withheld: str = ""  # why it is to have no nodes now, in a sentence (``trainer.withheld``)
    settled: tuple[str, ...] = ()  # sentences on why it keeps the nodes that it has
    is_draining: bool = False  # all nodes are given back; the answer says so elsewhere
    is_heard: bool = True  # the agents of its last nodes; else nobody knows what it does

    @property
    def is_decided(self) -> bool:
        """Whether the last decision's nodes are what it is to have."""
        return not (self.withheld or self.is_draining)


def limit_sentences(
    record: TrainerRecord, plan: Plan, settings: Settings, queue: Sequence[TrainerRecord]
) -> list[str]:
    """Say which limits of its user or account keep it from having more nodes."""
    sentences = list[str]()
    sizes = Counter(plan.assignment.values())
    size, step = sizes[record.trainer_id], 1
    if not size:
        step = record.spec.n_min
    for limit in limits_on(record.spec, settings.limits):
        name, max_nodes, key = limit
        n_used = 0
        for member in queue:
            if limit in limits_on(member.spec, settings.limits):
                n_used += sizes[member.trainer_id]
        if record.spec.n_min > max_nodes and not size:
            sentences.append(
                f"It cannot run: it needs {_least(record.spec)} (n_min) and the"
                f" policy allows {name} {max_nodes} at once ({key})."
            )
        elif n_used + step > max_nodes and size < record.spec.n_max:
            sentences.append(
                f"The trainers of {name} have {counted(n_used, 'node')}, and the policy"
                f" allows {max_nodes} at once ({key})."
            )
    return sentences


def fair_share_sentences(
    record: TrainerRecord, plan: Plan, settings: Settings, queue: Sequence[TrainerRecord]
) -> list[str]:
    """Say why it is the turn of others, if fair share decides that."""
    usage, half_life_s = plan.memory.usage, settings.fair_share_half_life_s
    if half_life_s is None or usage.at_s is None or record.trainer_id in plan.order:
        return []
    used_node_s = used_now(usage, half_life_s, usage.at_s)
    spec, running_ids = record.spec, frozenset(plan.assignment.values())

    def node_h(spec: TrainerSpec) -> float:
        return used_node_s.get(spec.account, {}).get(spec.user, 0.0) / NODE_H

    of_account = of_others = ""
    if spec.account:
        account_h = sum(used_node_s.get(spec.account, {}).values()) / NODE_H
        of_account = f", account {spec.account} {account_h:.1f}"
    # Without names: users may not be allowed to see those of others (visibility).
    others_h = [node_h(queued.spec) for queued in queue if queued.trainer_id in running_ids]
    if others_h:
        of_others = f", those who have nodes {min(others_h):.1f} to {max(others_h):.1f}"
    has_used = f"user {spec.user} has used {node_h(spec):.1f} node-hours{of_account}{of_others}"
    half = f"half is forgotten in {half_life_s / NODE_H:g} h"
    sentences = [f"It is the turn of others by fair share: {has_used}; {half}."]
    wait = usage.waits.get(spec.account, {}).get(spec.user)
    if wait is not None and wait.turn_ends_s is None:
        n_users = len({(waiting.spec.account, waiting.spec.user) for waiting in queue})
        left_s = max(0.0, wait.since_s + patience_s(n_users, half_life_s) - usage.at_s)
        sentences.append(f"At the latest in {left_s / NODE_H:.1f} h {spec.user} comes first.")
    return sentences


def impossible(records: Sequence[TrainerRecord], seen: Sequence[Node]) -> dict[str, str]:
    """Say why for each trainer that needs more nodes than this cluster has of a suitable type.

    Args:
        records: trainers that are not final.
        seen: all nodes of the last snapshot, in any state; empty: unknown.
    """
    reasons: dict[str, str] = {}
    for record, n_suitable in _too_few(records, [node.name for node in seen], seen, {}):
        reason = f"No node of this cluster meets its request ({asked(record.spec)})."
        if n_suitable:
            reason = (
                f"It needs {_least(record.spec)} (n_min) of one type, and of those"
                f" that it may use this cluster has {n_suitable}."
            )
        reasons[record.trainer_id] = reason
    return reasons


def cannot_start(
    records: Sequence[TrainerRecord],
    pool: Sequence[PoolNode],
    seen: Sequence[Node],
    assignment: Mapping[str, str],
) -> dict[str, str]:
    """Say why for each trainer that could not run now even if it were alone.

    Args:
        records: trainers that are not final.
        pool: nodes of the last decision.
        seen: all nodes of the last snapshot.
        assignment: node -> trainer, of that decision.
    """
    seen_names = {node.name for node in seen}
    names = [node.name for node in pool if node.name in seen_names]
    held_nodes = nodes_by_trainer(assignment, set(names))
    reasons: dict[str, str] = {}
    for record, n_suitable in _too_few(records, names, seen, held_nodes):
        of_type = " of one type that it may use"
        if n_suitable == len(names):
            of_type = ""
        needs = f"It needs {_least(record.spec)} (n_min)"
        reasons[record.trainer_id] = f"{needs} and the pool has {n_suitable}{of_type}."
    return {**reasons, **impossible(records, seen)}


def _too_few(
    records: Sequence[TrainerRecord],
    names: Iterable[str],
    seen: Sequence[Node],
    held: Mapping[str, Sequence[str]],
) -> Iterator[tuple[TrainerRecord, int]]:
    """Yield the trainers that need more of these nodes than they could have, with that number."""
    if not seen:  # nothing is known of the cluster
        return
    requests = [asked(record.spec) for record in records]
    classes = Classes(names, by_name(seen), requests)
    for record, request in zip(records, requests, strict=True):
        its_nodes = held.get(record.trainer_id, ())
        if request.gpus_per_unit:
            n_suitable = _most_units(request, seen)
        else:
            n_suitable = classes.choice(request, record.spec.n_min, its_nodes).max_nodes
        if n_suitable < record.spec.n_min:
            yield record, n_suitable


def _most_units(request: NodeRequest, seen: Sequence[Node]) -> int:
    """Return how many units of GPUs of one type the cluster lends at most."""
    units = Counter[str]()
    for node in seen:
        if not request.is_met_by(node):
            continue
        for lent in node.lends:
            if request.gpu_type in ("", lent.gpu_type):
                units[lent.gpu_type] += lent.n_gpus // request.gpus_per_unit
    return max(units.values(), default=0)


def _least(spec: TrainerSpec) -> str:
    """Return the smallest size of a trainer in words."""
    return size_words(spec.n_min, spec.gpus_per_unit)


def explain_trainer(
    record: TrainerRecord,
    plan: Plan | None,
    settings: Settings,
    queue: Sequence[TrainerRecord],
    nodes: Sequence[Node],
    observed_size: int,
    now_s: float = 0.0,
    *,
    circumstances: Circumstances = Circumstances(),
) -> tuple[str, ...]:
    """Return the reasons, most important first; none of them contradicts another.

    Args:
        record: the trainer.
        plan: the last decision; None: not yet.
        settings: of the policy.
        queue: all trainers that are not final, in FCFS order.
        nodes: of the last snapshot.
        observed_size: members of its current generation.
        now_s: of the decision; 0: it is not said how long it has waited.
        circumstances: what counts more than the decision.
    """
    if record.state.is_final:
        failures = ""
        if record.failures:
            failures = f" Failures in all: {record.failures}."
        return (f"It is {record.state.value}: {record.reason}{failures}",)
    planned_size = 0
    if plan:
        planned_size = Counter(plan.assignment.values())[record.trainer_id]
    if record.cancelled_s is not None:
        return (record.reason,)
    if not circumstances.is_decided:
        return tuple(_of_none(record, circumstances, observed_size))
    if circumstances.settled and planned_size == observed_size > 0:
        return circumstances.settled
    if plan is None:
        return ("No decision has been taken yet; the daemon has just started.",)
    return _of_plan(
        record,
        plan,
        settings,
        queue,
        nodes,
        planned_size,
        observed_size,
        now_s,
        is_heard=circumstances.is_heard,
    )


def _of_plan(
    record: TrainerRecord,
    plan: Plan,
    settings: Settings,
    queue: Sequence[TrainerRecord],
    nodes: Sequence[Node],
    planned: int,
    observed_size: int,
    now_s: float,
    *,
    is_heard: bool,
) -> tuple[str, ...]:
    """Say what the last decision made of a trainer, and how far it is with that."""
    if not plan.pool and plan.allocation is None and not plan.reserve and plan.not_used:
        unknown = next(iter(plan.not_used.values()))
        if "did not answer" in unknown:
            return (unknown,)
    left_out = why_left_out(record.trainer_id, plan.memory.left_out)
    sentences = [*left_out] or _size_sentences(
        record, plan, settings, queue, nodes, planned, observed_size
    )
    if 0 < planned <= observed_size and now_s < record.rests_until_s:
        sentences.append(
            f"It rests after a shrink: for {record.rests_until_s - now_s:.0f} s it does not grow"
            " (--rescale-rest)."
        )
    if not is_heard:
        return tuple(sentences)
    if not (planned or observed_size) and now_s:
        sentences += _wait(record, plan, settings, now_s)
    if planned != observed_size:
        sentences.append(_change(observed_size, planned, record.spec.gpus_per_unit))
    if coming := Counter(plan.swaps.values())[record.trainer_id]:
        sentences.append(
            f"{coming} more come from other users: their pilots leave, then its own start."
        )
    return (*sentences, *_parked(record, observed_size))


def _of_none(record: TrainerRecord, circumstances: Circumstances, observed: int) -> list[str]:
    """Say what becomes of a trainer that is to have no nodes now."""
    why = circumstances.withheld
    if observed and record.requeued_s is None:  # else this is said already
        leaves = f"It leaves its {size_words(observed, record.spec.gpus_per_unit)}"
        if why:
            return [why, f"{leaves}."]
        return [f"{leaves}, as all do."]
    if why:
        return [why]
    gets_none = "It gets no nodes while all are given back."
    if not circumstances.is_heard:
        return [gets_none]
    return [*_parked(record, observed), gets_none]


def _parked(record: TrainerRecord, observed: int) -> list[str]:
    """Say what a trainer without nodes that has run goes on from."""
    if record.state is TrainerState.PARKED and not observed:
        return [record.reason]
    return []


def _change(observed: int, planned: int, gpus_per_unit: int) -> str:
    """Say how a trainer comes from the size that it has to the one that it is to have."""
    if not planned:
        how = "it gives all back"
    elif planned < observed:
        how = f"it gives {observed - planned} back"
    elif observed:
        how = "it trains on and grows when agents and workers there have started"
    else:
        how = "it trains when agents and workers there have started"
    return f"It is on its way from {observed} to {size_words(planned, gpus_per_unit)}: {how}."


def _wait(record: TrainerRecord, plan: Plan, settings: Settings, now_s: float) -> list[str]:
    """Say since when a trainer has no nodes, and who has them."""
    since_s = record.progress.reported_s or record.submitted_s
    sizes = Counter(plan.assignment.values())
    if not sizes or now_s - since_s < 60.0:
        return []
    owners = ", ".join([f"{trainer_id} ({size})" for trainer_id, size in sizes.most_common(3)])
    if len(sizes) > 3:
        owners += f" and {len(sizes) - 3} others"
    waits = f"It has had no nodes for {(now_s - since_s) / 60.0:.0f} min; they go to {owners}."
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
    observed: int,
) -> list[str]:
    stuck = cannot_start(queue, plan.pool, nodes, plan.assignment)
    if not planned and record.trainer_id in stuck:
        sentences = [stuck[record.trainer_id]]
        if settings.skip_unstartable:
            sentences.append("It keeps its place; trainers behind it may run meanwhile.")
        return [*sentences, *(_way_out(record, nodes) or _idle(plan, settings))]
    limited = limit_sentences(record, plan, settings, queue)
    waits = limited or fair_share_sentences(record, plan, settings, queue)
    if waits and not planned:
        return waits
    position = _position(record, plan, settings, queue, stuck)
    if position > settings.p_jmax and not planned:
        return [
            (
                f"It is number {position} in the queue and the policy runs"
                f" {counted(settings.p_jmax, 'trainer')} at once (p_jmax)."
            )
        ]
    if plan.trouble:
        return [plan.trouble, "Until this is fixed, no trainer's nodes change."]
    if planned == record.spec.n_max:
        has = "is to have"
        if observed == planned:
            has = "has"
        maximum = size_words(planned, record.spec.gpus_per_unit)
        return [f"It {has} its maximum of {maximum} (n_max)."]
    return _of_size(record, plan, settings, planned, limited)


def _position(
    record: TrainerRecord,
    plan: Plan,
    settings: Settings,
    queue: Sequence[TrainerRecord],
    stuck: Mapping[str, str],
) -> int:
    """Return its place in the line of those that could start, from 1; 0: it is not in it."""
    if not settings.skip_unstartable:
        stuck = {}
    in_line = [waiting.trainer_id for waiting in queue if waiting.trainer_id not in stuck]
    in_line = in_order(in_line, plan.order)
    if record.trainer_id in in_line:
        return in_line.index(record.trainer_id) + 1
    return 0


def _way_out(record: TrainerRecord, nodes: Sequence[Node]) -> list[str]:
    """Say what has a trainer run that this cluster cannot hold, whatever is idle; []: it can."""
    if not impossible([record], nodes):
        return []
    of_one_node = replace(record, spec=replace(record.spec, n_min=1))
    if record.spec.n_min > 1 and not impossible([of_one_node], nodes):
        option = record.spec.size_option
        return [f"'bftrainer update {record.trainer_id} {option} MIN:MAX' lets it run on fewer."]
    if record.spec.gpus_per_unit:
        options = "--gpus, --gpus-per-node, --gres or --constraint"
        return [f"Cancel it, and submit it with other {options}; 'bftrainer nodes' shows the GPUs."]
    return ["Cancel it, and submit it with another --gres or --constraint."]


def _of_size(
    record: TrainerRecord, plan: Plan, settings: Settings, planned: int, limited: list[str]
) -> list[str]:
    """Say why it has this many nodes; ``limited``: by which limits."""
    pool = len(plan.pool)
    sentences = list(limited)
    if record.spec.sizes:
        option, unit = record.spec.size_option, units(record.spec.gpus_per_unit)
        sentences.append(f"It may have {record.spec.nodes} {unit} only ({option}).")
    if plan.allocation is None and pool:
        return [*sentences, "The last decision did not weigh it; the next one does."]
    if plan.allocation is None:
        return ["The pool is empty.", *_idle(plan, settings)]
    return [
        *sentences,
        *_worth(record, plan.allocation, settings, planned, pool),
        *_lost(record, plan, settings, planned),
        *_idle(plan, settings),
    ]


def _worth(
    record: TrainerRecord, allocation: Allocation, settings: Settings, planned: int, pool: int
) -> list[str]:
    if allocation.solver == settings.policy:  # nothing was priced
        nodes = counted(pool, "node")
        return [f"The policy {settings.policy} gives it {planned} of the pool's {nodes}."]
    sentences = [
        (
            f"The pool has {counted(pool, 'node')}; {_best_here(planned, pool)} worth most here"
            f" over the next {settings.t_fwd_s:.0f} s."
        )
    ]
    if unproven := not_proven(allocation):
        sentences.append(unproven)
    marginal = allocation.marginals.get(record.trainer_id)
    if marginal and marginal.gain_of_one_more is not None:
        sentence = _of_one_more(
            marginal.gain_of_one_more, allocation.node_price, record.spec.gpus_per_unit
        )
        sentences.append(sentence)
    return sentences


def _best_here(planned: int, pool: int) -> str:
    if pool == 1 and planned:
        return "it is"
    if pool == 1:
        return "it is not"
    if planned < 2:
        return f"{planned or 'none'} of them is"
    return f"{planned} of them are"


def _lost(record: TrainerRecord, plan: Plan, settings: Settings, planned: int) -> list[str]:
    if plan.allocation is None or plan.allocation.solver == settings.policy or not planned:
        return []
    if settings.objective is Objective.UTILITY:  # it reads no curve of throughput
        return []
    return list(filter(None, [losses.sentence(record, settings, plan.memory.losses, planned)]))


def gap_share(allocation: Allocation | None) -> float:
    """Return how much more a better answer may be worth, as a share of this; 0: it is the best."""
    if allocation is None or allocation.gap <= 0.0:
        return 0.0
    if allocation.objective <= 0.0:
        return math.inf
    return allocation.gap / allocation.objective


def not_proven(allocation: Allocation | None) -> str:
    """Return the sentence about an answer that may not be the best; "": it is, or nearly so."""
    share = gap_share(allocation)
    if share < SHOWN_GAP:
        return ""
    margin = "by an unknown share"
    if math.isfinite(share):
        margin = f"by at most {share:.1%}"
    return f"The last decision is not proven to be the best one: another may be better {margin}."


def _of_one_more(gain: float, price: float, gpus_per_unit: int) -> str:
    """Say why it has not one node, or unit, more; the unit of both figures cancels out."""
    unit, has = "node", "a node brings"
    if gpus_per_unit:
        unit, has = "GPU", "a GPU brings"
    if gpus_per_unit > 1:
        unit, has = f"unit of {gpus_per_unit} GPUs", "they bring"
    if gain <= 0.0:
        return f"With one {unit} more it would lose more by the rescale than it gains in that time."
    if price > gain:
        return f"One more {unit} would bring it {gain / price:.0%} of what {has} elsewhere."
    return f"One more {unit} would bring it as much as {has} elsewhere, but none is left for it."


def _idle(plan: Plan, settings: Settings) -> list[str]:
    reasons = Counter[str]()
    for why in plan.not_used.values():
        reasons[true_cause(why, plan, settings)] += 1
    sentences: list[str] = []
    for reason, count in reasons.most_common(3):
        number = counted(count, "node is", "nodes are")
        sentences.append(f"{number} not in the pool: {_of_each(reason, count)}")
    return sentences


def _of_each(reason: str, count: int) -> str:
    """Return a sentence about one node as one about so many."""
    if count > 1:
        for singular, plural in _NUMBERS:
            if reason.startswith(singular):
                return plural + reason.removeprefix(singular)
    return reason


def policy_terms(decision: WhatIf | None) -> Terms:
    """Return the numbers that a decision's sizes follow from, by trainer.

    Args:
        decision: taken again; None: it cannot be. Then, and where the policy tells none: {}.
    """
    if decision is None:
        return {}
    terms: dict[str, tuple[Term, ...]] = {}
    for trainer_id, its_terms in decision.terms.items():
        finite_terms = filter(_is_number, its_terms)
        terms[trainer_id] = tuple(
            [Term(term.name, float(term.value), term.unit) for term in finite_terms]
        )
    return terms


def _is_number(term: Term) -> bool:
    return math.isfinite(term.value)
