"""How long a node takes to train once a trainer is to have it and its agent is there: learnt.

``observe`` is an estimator (``observing``). A decision that knows the warm-up moves fewer nodes
for little (ADR 7). Pure.
"""

from __future__ import annotations

from dataclasses import replace

from bftrainer.model.decision import DecisionInput, Joining, Memory

ENOUGH = 5  # nodes that joined, before the average counts
NEWEST = 0.2  # share of the newest in the average


def observe(memory: Memory, given: DecisionInput) -> Memory:
    """Note which nodes are to train and do not yet, and learn from those that do now."""
    known = memory.joining
    waits = {p.node for p in given.pilots if p.is_held and not p.is_leaving}
    waits &= memory.assignment.keys() - given.training.keys()
    average_s, count = known.warm_up_s, known.count
    for node, joined_s in sorted(known.since_s.items()):
        if node in given.training:
            took_s, count = given.now_s - joined_s, count + 1
            average_s += max(NEWEST, 1.0 / count) * (took_s - average_s)
    since_s = {node: known.since_s.get(node, given.now_s) for node in sorted(waits)}
    joins = Joining(since_s=since_s, warm_up_s=average_s, count=count)
    return memory if joins == known else replace(memory, joining=joins)


def warm_up_s(joining: Joining, t_fwd_s: float) -> float:
    """Return what a joining node is taken to need before it trains; 0 until it is known.

    At most half of t_fwd: a node that would be worth nothing within it would never be taken.
    """
    if joining.count < ENOUGH:
        return 0.0
    # Whole seconds: what is learnt a little further changes nothing.
    return float(round(min(joining.warm_up_s, t_fwd_s / 2.0)))
