"""The warm-up of nodes: a decision that knows it moves fewer nodes for small gains (ADR 42). Pure.

``observe`` is an estimator (``observation``), ``problem`` uses the estimate.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.model.decision import DecisionInput, Joining, Memory

ENOUGH = 5  # nodes that joined before the average is used
NEWEST = 0.2  # weight of the newest in the average


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Note which assigned nodes do not train yet, and learn from those that now do."""
    joining = memory.joining
    waits = set[str]()
    assigned_nodes = memory.assignment.keys() - given.training.keys()
    for pilot in given.pilots:
        if pilot.is_held and not pilot.is_leaving and pilot.node in assigned_nodes:
            waits.add(pilot.node)
    average_s, count = joining.warm_up_s, joining.count
    for node, joined_s in sorted(joining.since_s.items()):
        if node in given.training and joined_s >= given.slept.until_s:
            took_s, count = given.now_s - joined_s, count + 1
            average_s += max(NEWEST, 1.0 / count) * (took_s - average_s)
    since_s = {node: joining.since_s.get(node, given.now_s) for node in sorted(waits)}
    joins = Joining(since_s=since_s, warm_up_s=average_s, count=count)
    if joins == joining:
        return memory
    return replace(memory, joining=joins)


def warm_up_s(joining: Joining, t_fwd_s: float, now_s: float) -> float:
    """Return the assumed warm-up of a joining node; while it is unknown, the longest wait so far.

    At most half of t_fwd: otherwise a node would never pay back and never be taken. A node that has
    waited for a while has at least that to lose, so it is not given to another trainer for less.
    """
    if joining.count < ENOUGH:
        waited_s = max(0.0, now_s - min(joining.since_s.values(), default=now_s))
        return float(round(min(waited_s, t_fwd_s / 2.0)))
    # Whole seconds, so that small updates do not change decisions.
    return float(round(min(joining.warm_up_s, t_fwd_s / 2.0)))
