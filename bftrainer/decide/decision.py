"""The decision itself: DecisionInput → Plan, a pure fold over events.

Order matters and is the order of the promises: first give back what ordinary jobs
could use, then restore the reserve, then allocate what is left by the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import lru_cache, partial

from bftrainer.canonical import to_plain
from bftrainer.decide import claims, reserve, settled, slow
from bftrainer.decide.cooling import leave_alone
from bftrainer.decide.curves import problem_trainer
from bftrainer.decide.exploring import Exploring
from bftrainer.decide.giveback import GiveBack, coming_back, give_back, still_held_off
from bftrainer.decide.inqueue import look_wanted_s
from bftrainer.decide.leftout import trouble
from bftrainer.decide.limit import hold_at_most
from bftrainer.decide.policies import no_rescale
from bftrainer.decide.policies.base import Policy
from bftrainer.decide.pool import FREE_STATES, Pool, build_pool, taken_nodes
from bftrainer.decide.remaining import forward_time_s, look
from bftrainer.decide.surviving import reason_of, surviving
from bftrainer.decide.types import (
    Claim,
    DecisionInput,
    Memory,
    PilotView,
    Plan,
    PoolNode,
    Release,
    Settings,
)
from bftrainer.decide.victims import CheapestForTrainers, first_by_name
from bftrainer.decide.waiting import starts_by_s
from bftrainer.events.idle import observe_idle
from bftrainer.poll.snapshot import NodeState
from milp.problem import Allocation, Problem, ProblemNode

AGENT_PATIENCE_S = 60.0  # from a pilot's start to its agent's hello: imports take their time
NO_ANSWER = "The batch system did not answer; nothing is taken or released until it does."


def decide(
    given: DecisionInput,
    policy: Policy,
    on_failure: Callable[[Exception], object] = lambda _: None,
) -> Plan:
    """Return who gets which node, what to claim and what to release.

    On an incomplete snapshot nothing is claimed and nothing is released
    (observation *unknown*), and the assignment stays as it is. It raises nothing: a trainer,
    job or node on which it fails is left out of it (``surviving``).

    Args:
        given: everything it depends on.
        policy: who allocates.
        on_failure: told what failed. What it raises is raised.
    """
    if not given.snapshot.is_complete:
        return _unchanged(given, NO_ANSWER)
    attempt, keep = partial(_decide, policy=policy), partial(_decide, policy=None)
    try:
        return surviving(given, attempt, keep, on_failure)
    except Exception as failure:  # noqa: BLE001 - give-back itself: the batch system preempts
        on_failure(failure)
        why = f"BFT-2118: nothing could be decided ({reason_of(failure)})."
        return replace(_unchanged(given, why), trouble=why)


def _decide(given: DecisionInput, policy: Policy | None) -> Plan:
    """Decide; without a policy everybody keeps what they have."""
    memory = _observe(given)
    given = replace(given, settings=_learnt(given, memory))
    moved = give_back(
        given.snapshot,
        given.pilots,
        memory,
        given.settings,
        given.now_s,
        first_by_name if policy is None else CheapestForTrainers(given, memory),
    )
    releases = list(moved.releases)
    if moved.gave_back or memory.gave_back:
        memory = replace(memory, gave_back=moved.gave_back)
    memory = _leave_to_jobs(memory, moved, given.now_s)
    memory = _hold_off(memory, [r.node for r in releases], given.now_s)
    gone = {r.pilot_id for r in releases}
    late = [r for r in _late(given) if r.pilot_id not in gone]
    releases += late
    memory = _hold_off(memory, [r.node for r in late], given.now_s)
    pool = _without(given, memory, releases, moved.spoken_for.keys())
    if for_reserve := _reserve_releases(pool, given, memory, moved.soon_taken):
        releases += for_reserve
        memory = _hold_off(memory, [r.node for r in for_reserve], given.now_s)
        pool = _without(given, memory, releases, moved.spoken_for.keys())
    pool, beyond = hold_at_most(pool, given.settings, lambda node: _cost(node, memory, given))
    releases += beyond
    memory = slow.settle(memory, [n.name for n in pool.nodes], given)
    kept = _kept(pool, given, memory)
    allocation, assignment = None, dict[str, str]()
    if policy is None:
        there = {n.name for n in pool.nodes}
        assignment = {n: t for n, t in memory.assignment.items() if n in there}
    elif problem := _problem(pool, given, memory, kept):
        allocation = _allocate(problem, Exploring(policy, given), _fractions(memory, given))
        assignment = dict(allocation.assignment)
    assignment |= kept
    if memory.slow_nodes or memory.replacing:
        memory = replace(memory, replacing=slow.replaced(memory, assignment, given))
    unused, idle_releases = _unwanted(pool, assignment, given, memory)
    gone = {r.pilot_id for r in releases}
    releases += [r for r in idle_releases if r.pilot_id not in gone]
    return Plan(
        assignment=assignment,
        claims=_claims(pool, assignment, given),
        releases=tuple(releases),
        pool=pool.nodes,
        not_used=pool.not_used,
        reserve=pool.reserve,
        allocation=allocation,
        trouble=trouble(memory.left_out) if policy is None else "",
        memory=replace(memory, assignment=assignment, unused_since=unused),
        look_wanted_s=look_wanted_s(given, memory, moved.left_to_jobs & moved.spoken_for.keys()),
    )


def _unchanged(given: DecisionInput, reason: str) -> Plan:
    return Plan(
        assignment=dict(given.memory.assignment),
        claims=(),
        releases=(),
        pool=(),
        not_used=dict.fromkeys(given.memory.idle_seen, reason),
        reserve=(),
        allocation=None,
        memory=given.memory,
    )


def _observe(given: DecisionInput) -> Memory:
    """Bring the memory up to the snapshot: idle counts and hold-offs."""
    memory, snapshot, joins = given.memory, given.snapshot, given.memory.joins
    seen = memory.idle_seen
    if given.is_new_snapshot:
        seen = observe_idle(seen, snapshot)
        if given.settings.t_fwd_s is None:
            ours = {p.node for p in given.pilots}
            joins = look(joins, seen.keys() | ours, given.now_s)
    memory = replace(
        memory,
        idle_seen=seen,
        held_off=still_held_off(memory.held_off, snapshot, given.settings),
        joins=joins,
    )
    return _learn(given, memory)


def _learn(given: DecisionInput, memory: Memory) -> Memory:
    """Bring up to date what settings are learnt from, where the policy says so."""
    settings, now_s = given.settings, given.now_s
    if settings.learns_min_gap:
        costs = claims.look(
            memory.claim_costs, given.pilots, memory.assignment, given.training, now_s
        )
        memory = replace(memory, claim_costs=costs)
    if settings.learns_reserve and given.is_new_snapshot:
        seen = reserve.look(
            memory.small_jobs, given.snapshot, memory.gave_back, settings.cycle_s, now_s
        )
        memory = replace(memory, small_jobs=seen)
    if memory.slow_nodes or given.speeds:
        memory = replace(memory, slow_nodes=slow.look(memory.slow_nodes, given, settings))
    return memory


def _learnt(given: DecisionInput, memory: Memory) -> Settings:
    """The settings of this decision, with what was learnt in place of what is usual."""
    settings = given.settings
    if not settings.learns_min_gap:
        return settings
    shortest_s = claims.shortest_gap_s(
        settings.min_gap_s,
        memory.claim_costs,
        given.trainers,
        settings.rescale_up_guess_s,
        settings.rescale_down_guess_s,
    )
    return _with_min_gap(settings, shortest_s)


@lru_cache(maxsize=16)  # the same object while nothing new is learnt: others go by identity
def _with_min_gap(settings: Settings, min_gap_s: float) -> Settings:
    return replace(settings, min_gap_s=min_gap_s)


def _hold_off(memory: Memory, nodes: list[str], now_s: float) -> Memory:
    if not nodes:
        return memory
    return replace(memory, held_off={**memory.held_off, **dict.fromkeys(nodes, now_s)})


def _leave_to_jobs(memory: Memory, moved: GiveBack, now_s: float) -> Memory:
    """Nodes a job is about to start on are its own for as long as those given back for it.

    From when this job could have started, not one that had the node before it: tasks of an
    array follow each other faster than cycles of the scheduler.
    """
    if not moved.left_to_jobs:
        return memory
    known_s = memory.held_off
    since_s = {
        name: max(known_s.get(name, now_s), moved.spoken_for.get(name, -math.inf))
        for name in moved.left_to_jobs
    }
    return replace(memory, held_off={**known_s, **since_s})


def _cost(node: str, memory: Memory, given: DecisionInput) -> tuple[float, str]:
    """Cheapest to lose first: unassigned nodes, then those of large trainers."""
    trainer = memory.assignment.get(node)
    if trainer is None:
        return (0.0, node)
    size = sum(1 for t in memory.assignment.values() if t == trainer)
    spec = next((r.spec for r in given.trainers if r.trainer_id == trainer), None)
    if spec is not None and size - 1 < spec.n_min:
        return (2.0, node)  # it would have to park
    return (1.0 + 1.0 / (1 + size), node)


def _without(
    given: DecisionInput, memory: Memory, releases: list[Release], spoken_for: AbstractSet[str]
) -> Pool:
    gone = {r.pilot_id for r in releases}
    pilots = tuple(replace(p, is_leaving=True) if p.pilot_id in gone else p for p in given.pilots)
    pool = build_pool(given.snapshot, pilots, memory, given.settings, given.now_s, spoken_for)
    return leave_alone(pool, given.cooling, given.now_s) if given.cooling else pool


def _late(given: DecisionInput) -> list[Release]:
    """Release pilots that did not start in time: the scheduler has other plans.

    By a look that is young enough to show it: one may have started since the last. A pilot
    that did start has a minute more for its agent to come.
    """
    patience_s, looked_s = given.settings.pilot_start_timeout_s, given.snapshot.taken_at_s

    def is_late(pilot: PilotView) -> bool:
        if pilot.end_s is None:
            return looked_s - pilot.requested_s > patience_s
        return given.now_s - pilot.requested_s > patience_s + AGENT_PATIENCE_S

    return [
        Release(pilot_id=p.pilot_id, node=p.node, reason="Its pilot did not start in time.")
        for p in given.pilots
        if not (p.is_held or p.is_leaving) and is_late(p)
    ]


def _reserve_releases(
    pool: Pool, given: DecisionInput, memory: Memory, soon_taken: AbstractSet[str]
) -> list[Release]:
    """Free as many nodes as the reserve lacks, unless nodes are on their way back.

    What the main scheduler is about to start a job on, announced a moment ago perhaps, is
    nobody's reserve; what only backfill can give away is there until shortly before that.
    """
    if not pool.reserve_deficit:
        return []
    coming = coming_back(given.snapshot, given.pilots, memory) | _unconfirmed(given, memory)
    coming -= soon_taken
    type_of = {n.name: n.node_type for n in given.snapshot.nodes or ()}
    releases: list[Release] = []
    for node_type, missing in sorted(pool.reserve_deficit.items()):
        n_coming = sum(1 for name in coming if type_of[name] == node_type)
        ours = sorted(
            (n for n in pool.nodes if n.node_type == node_type and n.pilot_id),
            key=lambda n: (n.is_held, *_cost(n.name, memory, given)),
        )
        releases += [
            Release(
                pilot_id=n.pilot_id,
                node=n.name,
                reason="The reserve for small and immediate jobs is used up.",
            )
            for n in ours[: max(0, missing - n_coming)]
        ]
    return releases


def _unconfirmed(given: DecisionInput, memory: Memory) -> set[str]:
    """Return the free nodes that are candidates as soon as they have been idle long enough."""
    piloted = {p.node for p in given.pilots}
    return {
        n.name
        for n in given.snapshot.nodes or ()
        if n.state in FREE_STATES
        and n.name not in piloted
        and memory.idle_seen.get(n.name, 0) < given.settings.idle_confirmations
    }


def _kept(pool: Pool, given: DecisionInput, memory: Memory) -> dict[str, str]:
    """Which nodes stay with whom, whatever the policy would say."""
    if not given.settled_until_s:
        return {}
    names = {n.name for n in pool.nodes} - memory.replacing.keys() - given.cooling.keys()
    return settled.kept(given, _by_trainer(memory.assignment, names))


def _problem(
    pool: Pool, given: DecisionInput, memory: Memory, kept: Mapping[str, str]
) -> Problem | None:
    """State the allocation problem; ``None`` when there is nothing to allocate."""
    nodes = pool.nodes
    left_out = memory.replacing.keys() | given.cooling.keys() | kept.keys()
    if left_out:  # stragglers that stay for a while are nobody else's
        nodes = tuple([n for n in nodes if n.name not in left_out])
    names, as_they_are = {n.name for n in nodes}, set(kept.values())
    trainers = given.trainers
    if as_they_are:
        trainers = tuple([r for r in trainers if r.trainer_id not in as_they_are])
    p_jmax = given.settings.p_jmax - len(as_they_are)
    if not trainers or not names or p_jmax < 1:
        return None
    held = _by_trainer(memory.assignment, names)
    training = _by_trainer(given.training, names)
    nobody: tuple[str, ...] = ()
    t_fwd_s = forward_time_s(given.settings.t_fwd_s, memory.joins)
    return Problem(
        nodes=tuple([_problem_node(n, given.now_s) for n in nodes]),
        trainers=tuple(
            [
                problem_trainer(
                    record,
                    held.get(record.trainer_id, nobody),
                    given.settings,
                    training.get(record.trainer_id, nobody),
                )
                for record in trainers
            ]
        ),
        t_fwd_s=t_fwd_s,
        per_node_horizon=_ends_before(pool, given.now_s + t_fwd_s),
        p_jmax=p_jmax,
        objective=given.settings.objective,
    )


def _ends_before(pool: Pool, at_s: float) -> bool:
    """Whether a gap is over before that: only then do ends change what nodes earn."""
    return any(n.usable_until_s is not None and n.usable_until_s < at_s for n in pool.nodes)


def _by_trainer(assignment: Mapping[str, str], names: set[str]) -> dict[str, tuple[str, ...]]:
    """Each trainer's nodes among ``names``, sorted."""
    found: dict[str, list[str]] = {}
    for name in sorted(assignment.keys() & names):
        found.setdefault(assignment[name], []).append(name)
    return {trainer_id: tuple(own) for trainer_id, own in found.items()}


def _problem_node(node: PoolNode, now_s: float) -> ProblemNode:
    if node.usable_until_s is None:
        return _endless_node(node.name, node.node_type, node.gpus)
    return ProblemNode(
        name=node.name,
        eligibility=node.node_type,
        gpus=node.gpus,
        expected_remaining_s=max(0.0, node.usable_until_s - now_s),
    )


@lru_cache(maxsize=1 << 16)  # mostly the same nodes, decision after decision
def _endless_node(name: str, node_type: str, gpus: int) -> ProblemNode:
    return ProblemNode(name=name, eligibility=node_type, gpus=gpus)


def _fractions(memory: Memory, given: DecisionInput) -> dict[str, float]:
    """What slow nodes are taken to reach now; a rule that never rescales has no use for it."""
    settings, now_s = given.settings, given.now_s
    if settings.policy == no_rescale.POLICY.name:
        return {}
    return {n: slow.fraction_now(s, settings, now_s) for n, s in memory.slow_nodes.items()}


def _allocate(problem: Problem, policy: Policy, fractions: Mapping[str, float]) -> Allocation:
    if fractions:
        found = slow.allocate(problem, fractions, policy.allocate)
    else:
        found = policy.allocate(problem)
    to_plain(replace(found, assignment={}))  # a policy of another package may give any number
    return found


def _claims(pool: Pool, assignment: Mapping[str, str], given: DecisionInput) -> tuple[Claim, ...]:
    claims: list[Claim] = []
    settings, starts_s = given.settings, None
    longest = settings.pilot_time_limit_s
    if given.snapshot.plan_window_s is not None:  # nothing is known of what comes after
        longest = min(longest, given.snapshot.plan_window_s)
    for node in pool.nodes if given.may_claim else ():
        if node.pilot_id or node.name not in assignment:
            continue
        if starts_s is None:
            starts_s = starts_by_s(given.snapshot, settings.cycle_s, given.now_s)
        limit = longest
        if node.usable_until_s is not None:
            limit = min(limit, node.usable_until_s - starts_s)
        # What is planned on the node when its cycle comes is not known yet.
        is_open = starts_s > given.now_s and settings.min_gap_s < limit
        claims.append(
            Claim(
                node=node.name,
                time_limit_s=limit,
                for_trainer=assignment[node.name],
                or_time_limit_s=settings.min_gap_s if is_open else None,
            )
        )
    return tuple(claims)


def _unwanted(
    pool: Pool, assignment: Mapping[str, str], given: DecisionInput, memory: Memory
) -> tuple[dict[str, float], list[Release]]:
    """Release pilots that no trainer wants, and those that must leave their node."""
    unused: dict[str, float] = {}
    releases: list[Release] = []
    for node in pool.nodes:
        if not node.pilot_id:
            continue
        if node.name not in assignment and node.name not in memory.replacing:
            since = memory.unused_since.get(node.name, given.now_s)
            unused[node.name] = since
            if given.now_s - since >= given.settings.hold_idle_s or not node.is_held:
                cools = given.cooling.get(node.name)
                why = "No trainer wants it." if cools is None else cools.sentence(given.now_s)
                releases.append(_release(node, why))
    for pilot in _struck(given, pool):
        if pilot.node in pool.not_used and not pilot.is_leaving:
            reason = pool.not_used[pilot.node]
            releases.append(Release(pilot_id=pilot.pilot_id, node=pilot.node, reason=reason))
    return unused, releases


def _release(node: PoolNode, reason: str) -> Release:
    return Release(pilot_id=node.pilot_id, node=node.name, reason=reason)


def _struck(given: DecisionInput, pool: Pool) -> list[PilotView]:
    """Pilots whose node must be left for a reason of its own (limit, plan, drain, taken)."""
    if not given.pilots:
        return []
    nodes = {n.name: n for n in given.snapshot.nodes or ()}
    taken = taken_nodes(given.snapshot)
    ends_by_s = given.now_s + given.settings.end_margin_s / 2

    def has_struck(pilot: PilotView) -> bool:
        node = nodes.get(pilot.node)
        if node is None:
            return False  # vanished from the snapshot: the batch system will end the pilot
        if node.name in pool.due:
            return True
        near_end = pilot.end_s is not None and pilot.end_s <= ends_by_s
        is_taken = not pilot.is_held and node.name in taken
        return near_end or is_taken or node.state in {NodeState.DRAINED, NodeState.RESERVED}

    return [p for p in given.pilots if has_struck(p)]
