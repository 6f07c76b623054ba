"""Pilots to request, to give up, and to exchange between users. Pure.

Requests are the last stage of ``decision`` (``claim_nodes``).

A pilot waits behind every ordinary job; it is overdue when two scheduler cycles that began after
its request passed over it (``release_overdue``, a stage of ``decision``). A slow prolog or file
system may delay an agent, so the time limit for agents is learnt (``observe``, an estimator of
``observation``).

Where pilots run as the submitting user (policy ``run_as``), an agent serves trainers of its own
user only. A node that goes to a trainer of another user is a *swap*: its pilot is released once
no trainer trains there, and one of the other user is requested. Its price is the work that the
joining trainer misses, because that node can join only when the new agent has connected and it is
warm. Until then it trains on the others, i nodes, and where some of those join earlier, it pauses
once more:

    (O_j(s) - O_j(i)) min(swap_s, T_fwd - warm_up_s)  +  O_j(i) R_up if i > C_j

Two answers are compared by their worth less the price of their swaps: the optimum without the
price, and the optimum if every joining node were a swap. The first is also a bound on every
answer, so ``Allocation.gap`` says what a better one could gain. At the same work done the price
saves 12 to 22% of swaps of 41 s, and 1 to 6% of swaps of 6 s (docs/adr/0030-many-users.md).

From a pilot's release until its node is free, that node counts as given to its trainer
(``under_way``): without that, each decision in between would release one more pilot for it.
Called by ``allocation``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

from bftrainer.decide import eligible
from bftrainer.decide.cycles import are_told, have_passed
from bftrainer.decide.draft import Draft
from bftrainer.decide.policies.base import Decided
from bftrainer.decide.pool import Pool
from bftrainer.model.decision import (
    AgentPatience,
    Claim,
    DecisionInput,
    Ends,
    Memory,
    PilotView,
    PoolNode,
    Release,
    Swap,
)
from milp.problem import Allocation, Problem
from milp.worth import allocation_value, rate


def claim_nodes(draft: Draft) -> Draft:
    """Claim the nodes assigned to trainers, and release those without a trainer."""
    given = draft.given
    unused = {
        n.name: draft.memory.unused_since.get(n.name, given.now_s)
        for n in draft.pool.nodes
        if n.pilot_id and n.name not in draft.assignment and n.name not in draft.memory.replacing
    }
    given_away = list(_swapped(draft))
    # Later, the node has gone elsewhere.
    until_s = given.now_s + TIMES * swap_s(draft.memory.ends)
    begun = {r.node: Swap(trainer_id=draft.swaps[r.node], until_s=until_s) for r in given_away}
    memory = replace(
        draft.memory,
        assignment=draft.assignment,
        unused_since=unused,
        swaps={**under_way(draft.memory, draft.pool, given.now_s), **begun},
    )
    draft = replace(draft, memory=memory, claims=tuple(_claims(draft)))
    releases = [*given_away, *_unwanted(draft), *_due(draft)]
    return draft.releasing(releases, is_held_off=False)


def _claims(draft: Draft) -> Iterator[Claim]:
    given, settings = draft.given, draft.given.settings
    asked = [n for n in draft.pool.nodes if not n.pilot_id and n.name in draft.assignment]
    if not (given.may_claim and given.snapshot.is_complete and asked):
        return
    longest_s = settings.pilot_time_limit_s
    if given.snapshot.plan_window_s is not None:  # nothing is known beyond it
        longest_s = min(longest_s, given.snapshot.plan_window_s)
    for node in asked:
        limit_s = longest_s
        if node.usable_until_s is not None:
            limit_s = min(limit_s, node.usable_until_s - draft.pool.starts_s)
        yield Claim(node=node.name, time_limit_s=limit_s, for_trainer=draft.assignment[node.name])


def _swapped(draft: Draft) -> Iterator[Release]:
    """Release pilots whose node goes to another user, once no trainer trains there."""
    given = draft.given
    for node in draft.pool.nodes:
        if node.name in draft.swaps.keys() - given.training.keys() - given.occupied.keys():
            yield _release(node, f"It goes to {draft.swaps[node.name]}, of another user.")


def _unwanted(draft: Draft) -> Iterator[Release]:
    """Release pilots whose node no trainer gets, once none trains or saves its state there."""
    given, since_s = draft.given, draft.memory.unused_since
    if not since_s:
        return
    # Earlier releases' inputs name trainers that have ended, too.
    its = {record.trainer_id for record in given.trainers}
    busy = given.occupied.keys() | {node for node, one in given.training.items() if one in its}
    for node in draft.pool.nodes:
        if node.name not in since_s.keys() - busy:
            continue
        is_over = given.now_s - since_s[node.name] >= given.settings.hold_idle_s
        is_over = is_over and not (node.is_held and eligible.is_awaited(given, node.name))
        if is_over or not node.is_held:
            cools = given.cooling.get(node.name)
            why = eligible.why_unused(given, node.name) or "No trainer wants it."
            why = why if cools is None else cools.sentence(given.now_s)
            yield _release(node, why)


def _due(draft: Draft) -> Iterator[Release]:
    """Release pilots that must leave their node."""
    for pilot in draft.given.pilots:
        if pilot.pilot_id in draft.pool.due:
            why = draft.pool.due[pilot.pilot_id]
            yield Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=why)


def _release(node: PoolNode, reason: str) -> Release:
    return Release(pilot_id=node.pilot_id, node=node.name, reason=reason)


LEAST_S, MOST_S = 60.0, 900.0  # bounds of the agents' time limit; imports are slow
TIMES = 3.0  # a wait lasts at most so many times what it usually takes
DID_NOT_CONNECT = "Its agent did not connect in time"
A_BIT_S = 5.0  # from the request until polls show the pilot


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Note which pilots have started, and learn from the agents that connected."""
    known = memory.agents
    came = [p.pilot_id for p in given.pilots if p.is_held and p.pilot_id in known.started_s]
    took_s = [given.now_s - (known.started_s[pilot_id] or given.now_s) for pilot_id in came]
    took_s = [one_s for one_s in took_s if given.now_s - one_s >= given.slept.until_s]
    started_s: dict[str, float | None] = {}
    for pilot in given.pilots:
        if not (pilot.is_held or pilot.is_leaving or pilot.is_silent):
            since_s = known.started_s.get(pilot.pilot_id)
            has_begun = since_s is None and pilot.end_s is not None
            started_s[pilot.pilot_id] = given.now_s if has_begun else since_s
    limit_s = known.limit_s
    if took_s:
        limit_s = min(max(LEAST_S, TIMES * max(took_s)), MOST_S)
    agents = AgentPatience(limit_s=limit_s, started_s=started_s)
    return memory if agents == known else replace(memory, agents=agents)


def release_overdue(draft: Draft) -> Draft:
    """Release overdue pilots; if an agent was overdue, double the time limit for agents."""
    late = list(_late(draft.given, draft.memory))
    draft = draft.releasing(late, is_held_off=True)
    agents = draft.memory.agents
    if all(agents.started_s[release.pilot_id] is None for release in late):
        return draft
    longer = replace(agents, limit_s=min(2.0 * agents.limit_s, MOST_S))
    return replace(draft, memory=replace(draft.memory, agents=longer))


def _late(given: DecisionInput, memory: Memory) -> Iterator[Release]:
    limit_s = memory.agents.limit_s
    for pilot in given.pilots:
        if pilot.is_held or pilot.is_leaving or pilot.is_silent:
            continue
        since_s, reason = memory.agents.started_s[pilot.pilot_id], ""
        if since_s is not None and given.now_s - max(since_s, given.slept.until_s) > limit_s:
            reason = f"{DID_NOT_CONNECT} ({limit_s:.0f} s)."
        elif since_s is None and _is_passed_over(pilot, given, memory):
            reason = "Its pilot did not start in time: the scheduler has passed over it."
        if reason:
            yield Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=reason)


def _is_passed_over(pilot: PilotView, given: DecisionInput, memory: Memory) -> bool:
    """Return whether two cycles did not start it, as far as a recent enough snapshot shows."""
    snapshot, settings = given.snapshot, given.settings
    # A daemon that slept may have decided before and asked only after.
    asked_s = max(pilot.requested_s, given.slept.until_s)
    if snapshot.taken_at_s - asked_s <= A_BIT_S:
        return False
    if not are_told(snapshot):  # ``have_passed(1)`` waits for two intervals then
        return have_passed(1, asked_s + A_BIT_S, memory, snapshot, settings)
    return have_passed(2, asked_s, memory, snapshot, settings)


SUBMIT_S = 1.0  # a poll shows the free node, sbatch, and the main scheduler's pass
START_GUESS_S = 3.0  # of an agent, until one was measured


def swap_s(ends: Ends) -> float:
    """Return the time in seconds from a pilot's release until another's agent connects."""
    end_s, start_s = median(ends.took_s or (0.0,)), median(ends.joined_s or (START_GUESS_S,))
    return end_s + SUBMIT_S + start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """The users of pilots and trainers."""

    pilots: Mapping[str, str]  # node -> user of its pilot; nodes that any user may get are missing
    trainers: Mapping[str, str]  # trainer -> user

    def swaps(self, assignment: Mapping[str, str]) -> list[str]:
        """Return the nodes of pilots of another user than their trainer's, sorted."""
        known = assignment.keys() & self.pilots.keys()
        return sorted([node for node in known if self.is_swap(node, assignment[node])])

    def is_swap(self, node: str, trainer_id: str) -> bool:
        """Return whether the node's pilot would have to be another user's."""
        return self.pilots.get(node, self.trainers[trainer_id]) != self.trainers[trainer_id]


def owners_of(pool: Pool, given: DecisionInput) -> Owners:
    """Return the owners; no pilots: one user runs all of them."""
    pilots = {node.name: node.user for node in pool.nodes if node.user}
    trainers = {r.trainer_id: r.spec.user for r in given.trainers} if pilots else {}
    return Owners(pilots=pilots, trainers=trainers)


def cheapest(
    problem: Problem, answer: Callable[[Problem], Decided], owners: Owners, cost_s: float
) -> Decided:
    """Return the better of the two answers.

    Args:
        problem: of this decision.
        answer: of the policy to a problem.
        owners: of its nodes and trainers.
        cost_s: of a swap.
    """
    best = answer(problem)
    if not owners.swaps(best.allocation.assignment):
        return best
    dearer = tuple([replace(t, warm_up_s=t.warm_up_s + cost_s) for t in problem.trainers])
    careful = answer(replace(problem, trainers=dearer))
    worth = allocation_value(problem, careful.allocation.assignment)
    careful = replace(careful, allocation=replace(careful.allocation, objective=worth))
    worths = [_worth(one.allocation, problem, owners, cost_s) for one in (best, careful)]
    gap = max(0.0, best.allocation.objective + best.allocation.gap - max(worths))
    chosen = best if worths[0] >= worths[1] else careful
    return replace(chosen, allocation=replace(chosen.allocation, gap=gap))


def _worth(allocation: Allocation, problem: Problem, owners: Owners, cost_s: float) -> float:
    """Return the worth of an allocation less the price of its swaps."""
    swaps = Counter([allocation.assignment[node] for node in owners.swaps(allocation.assignment)])
    in_pool, sizes = {node.name for node in problem.nodes}, allocation.sizes()
    prices = []
    for trainer in problem.trainers:
        if late := swaps[trainer.trainer_id]:
            before, size = len(in_pool.intersection(trainer.current)), sizes[trainer.trainer_id]
            without = max(before, trainer.largest_of(size - late))
            missed_s = min(cost_s, max(0.0, problem.t_fwd_s - trainer.warm_up_s))
            rates = [rate(trainer, n, problem.objective) for n in (without, size)]
            again = rates[0] * trainer.rescale_up_s if without > before else 0.0
            # Where more nodes are slower, a swap that delays them is no gain: they need not come.
            prices.append(max(0.0, (rates[1] - rates[0]) * missed_s + again))
    return allocation.objective - math.fsum(prices)


def under_way(memory: Memory, pool: Pool, now_s: float) -> dict[str, Swap]:
    """Return the swaps whose pilot has been released and whose node is not free yet."""
    there = {node.name for node in pool.nodes}
    return {n: s for n, s in memory.swaps.items() if n not in there and now_s < s.until_s}


def split(
    assignment: Mapping[str, str], owners: Owners, held: Mapping[str, str], coming: Iterable[Swap]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the assignment without its swaps, and the swaps.

    For each node that is ``coming`` to a trainer, one of its swaps less is made: that node stays
    with the trainer that has ``held`` it, if it is still there.
    """
    awaited = Counter(swap.trainer_id for swap in coming)
    kept, swapped = dict(assignment), dict[str, str]()
    for node in owners.swaps(assignment) if owners.pilots else ():
        trainer_id = kept.pop(node)
        if not awaited[trainer_id]:
            swapped[node] = trainer_id
            continue
        awaited[trainer_id] -= 1
        if held.get(node) in owners.trainers:
            kept[node] = held[node]
    return kept, swapped
