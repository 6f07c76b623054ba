"""Explains nodes that are kept free, slow, or whose agents are silent. Pure.

A plan's own words name the policy's setting; ``true_cause`` names the cause where that is another.
Called by ``sizes``, and by ``views`` for ``bftrainer status`` and ``nodes``.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from bftrainer.decide.end_cost import end_cost_s
from bftrainer.decide.pool import KEPT_FREE
from bftrainer.decide.slow_nodes import forgotten_above, fraction_now
from bftrainer.model.decision import Memory, Plan, Settings, SlowNode
from bftrainer.model.trainer import TrainerRecord

SHOWN = 8  # nodes by name


def cut_off_sentence(nodes: Collection[str], n_agents: int, for_s: float) -> str:
    """Say that the daemon cannot reach most agents; "": it can.

    Args:
        nodes: of the agents that it cannot reach.
        n_agents: those and the others.
        for_s: how long ago the first of them was heard.
    """
    if not nodes:
        return ""
    names = ", ".join(sorted(nodes)[:SHOWN])
    if len(nodes) > SHOWN:
        names += ", ..."
    return (
        f"BFT-1330: The daemon has not heard {len(nodes)} of its {n_agents} agents for"
        f" {for_s:.0f} s ({names}). Trainers there go on as far as is known, and no pilot is"
        " cancelled for it. Check the network of the daemon's host."
    )


def unheard_sentence(node: str, for_s: float, left_s: float | None) -> str:
    """Say that nobody knows what a trainer's worker on a silent node does, and how long we wait.

    Args:
        node: of its last workers.
        for_s: how long its agent is not heard.
        left_s: for which its pilot is kept; None: it is cancelled already.
    """
    begin = (
        f"The agent on {node} has been silent for {for_s:.0f} s. The worker there may still train;"
        " what it does meanwhile is repeated from the last checkpoint."
    )
    if left_s is None:
        return f"{begin} Its pilot is being cancelled: an agent that comes back has to go."
    return f"{begin} Its pilot is kept for another {max(0.0, left_s):.0f} s (unreachable_s)."


def true_cause(reason: str, plan: Plan, settings: Settings) -> str:
    """Return why a node is not used; ``reason``: in the plan's words."""
    if reason != KEPT_FREE or settings.reserve_nodes_per_type:
        return reason
    begin = "It is kept free for small and immediate jobs: "
    cost_s = end_cost_s(plan.memory)
    if cost_s > settings.harm_slo_s:
        return (
            f"{begin}a node comes back only {cost_s:.0f} s after its pilot was asked to leave, not"
            f" within the promised {settings.harm_slo_s:g} s (harm_slo_s)."
        )
    return f"{begin}bftrainer backs off (bftrainer report harm)."


def slow_sentences(memory: Memory, settings: Settings, now_s: float) -> dict[str, str]:
    """Say of each slow node how slow it is, and for how long that counts."""
    sentences: dict[str, str] = {}
    for name, slow_node in sorted(memory.slow_nodes.items()):
        measured_in = slow_node.trainer_id or "a trainer"
        ago = _ago(now_s - slow_node.seen_s)
        counts_on = _counts_on(slow_node, settings, now_s)
        sentences[name] = (
            f"{name} was found slow: {_how_slow(slow_node)} ({measured_in}, {ago}); {counts_on}."
        )
    return sentences


def straggler_sentences(
    record: TrainerRecord, plan: Plan | None, settings: Settings, observed: tuple[str, ...]
) -> tuple[str, ...]:
    """Say what happens to the slow nodes that a trainer has or had."""
    if plan is None or record.state.is_final:
        return ()
    memory, sentences = plan.memory, []
    for name, slow_node in sorted(memory.slow_nodes.items()):
        pair = memory.replacing.get(name)
        if pair is not None and pair.trainer_id == record.trainer_id:
            sentences.append(
                f"{name} is slow ({_how_slow(slow_node)}) and stays until {pair.node} trains in its"
                " place."
            )
        elif name in observed and plan.assignment.get(name) == record.trainer_id:
            sentences.append(
                f"{name} is slow ({_how_slow(slow_node)}) and stays: no other node is worth more"
                f" here, or a change would not pay back within {settings.t_fwd_s:.0f} s."
            )
        elif slow_node.trainer_id == record.trainer_id and name not in plan.assignment:
            sentences.append(f"{name} is left out because it is slow ({_how_slow(slow_node)}).")
    return tuple(sentences)


def _how_slow(slow_node: SlowNode) -> str:
    return f"{slow_node.fraction:.2f} of the others' throughput"


def _ago(seconds: float) -> str:
    if seconds < 2.0:
        return "now"
    return f"{seconds:.0f} s ago"


def _counts_on(slow_node: SlowNode, settings: Settings, now_s: float) -> str:
    """Say when its remembered fraction will have risen so far that it is forgotten."""
    slowness = 1.0 - fraction_now(slow_node, settings, now_s)
    halvings = math.log2(slowness / (1.0 - forgotten_above(settings)))
    left_s = settings.straggler_memory_s * max(0.0, halvings)
    return f"that counts for {left_s / 60.0:.0f} min more"
