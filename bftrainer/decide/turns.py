"""Turns: a bound on how long a trainer waits. Pure.

Policies that maximise or order by remaining time may leave a trainer without nodes for ever. With a
bound (``max_wait_s``), a trainer that has waited so long has a turn: it keeps the nodes it has, or
gets its n_min, for as long as the bound. Turns come before the policy, the longest wait first, at
most for half of ``p_jmax`` at once. ``observe`` is an estimator (``observation``), ``allocation``
calls the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from bftrainer.model.decision import DecisionInput, Memory
from bftrainer.model.fairness import Wait
from milp.problem import Problem, ProblemError, ProblemNode
from milp.solve import solve


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Note since when trainers wait, and whose turn lasts."""
    most_s, now_s = given.settings.max_wait_s, given.now_s
    waits = dict[str, Wait]()
    for record in given.trainers if most_s is not None else ():
        since_s = now_s
        if record.started_s is None:
            since_s = record.submitted_s
        wait = memory.waits.get(record.trainer_id, Wait(since_s=since_s))
        if wait.turn_ends_s is not None and now_s >= wait.turn_ends_s:
            wait = Wait(since_s=now_s)  # its turn is over
        if wait.turn_ends_s is None and record.trainer_id in given.training.values():
            continue
        if wait.turn_ends_s is None and now_s - wait.since_s >= (most_s or 0.0):
            wait = replace(wait, turn_ends_s=now_s + (most_s or 0.0))
        waits[record.trainer_id] = wait
    if waits == memory.waits:
        return memory
    return replace(memory, waits=waits)


def in_turn(memory: Memory, given: DecisionInput) -> list[str]:
    """Return the trainers whose turn it is, the longest wait first."""
    turns: list[tuple[float, str]] = []  # since when it waits, trainer
    for record in given.trainers:
        wait = memory.waits.get(record.trainer_id)
        if wait is not None and wait.turn_ends_s is not None:
            turns.append((wait.since_s, record.trainer_id))
    turns.sort()
    return [trainer_id for _, trainer_id in turns[: (given.settings.p_jmax + 1) // 2]]


def given_to(trainer_id: str, problem: Problem, taken: Iterable[str]) -> Mapping[str, str]:
    """Return the nodes that a trainer gets for its turn: n_min of them, or none if it cannot start.

    Free ones first, then those of the trainer that has most.

    Args:
        trainer_id: whose turn it is.
        problem: of all trainers.
        taken: nodes that are given away.
    """
    out, trainer = set(taken), None
    owner: dict[str, str] = {}
    for holder in problem.trainers:
        if holder.trainer_id == trainer_id:
            trainer = holder
        else:
            owner.update(dict.fromkeys(holder.current, holder.trainer_id))
    if trainer is None:
        return {}
    alone = replace(trainer, n_max=trainer.n_min, must_run=True)
    sizes = Counter(owner.values())
    nodes_of: dict[str, list[ProblemNode]] = {}
    for node in problem.nodes:
        if node.name not in out:
            nodes_of.setdefault(owner.get(node.name, ""), []).append(node)
    nodes: list[ProblemNode] = []
    for loser in ("", *sorted(sizes, key=lambda owner_id: (-sizes[owner_id], owner_id))):
        nodes += nodes_of.get(loser, ())
        if len(nodes) < trainer.n_min:
            continue
        try:
            answer = solve(
                replace(problem, nodes=tuple(nodes), trainers=(alone,), p_jmax=1, caps=())
            )
        except ProblemError:
            continue
        return answer.assignment
    return {}
