"""Explains the slow nodes that decisions remember. Pure.

Called by ``service`` for ``bftrainer status``, ``nodes`` and ``sizes``.
"""

from __future__ import annotations

import math

from bftrainer.decide.slow_nodes import forgotten_above, fraction_now
from bftrainer.model.decision import Memory, Plan, Settings, SlowNode
from bftrainer.model.trainer import TrainerRecord


def slow_sentences(memory: Memory, settings: Settings, now_s: float) -> dict[str, str]:
    """Say of each slow node how slow it is, and for how long that counts."""
    return {
        name: f"{name} was found slow: {_how_slow(one)} ({one.trainer_id or 'a trainer'},"
        f" {_ago(now_s - one.seen_s)}); {_counts_on(one, settings, now_s)}."
        for name, one in sorted(memory.slow_nodes.items())
    }


def straggler_sentences(
    record: TrainerRecord, plan: Plan | None, settings: Settings, observed: tuple[str, ...]
) -> tuple[str, ...]:
    """Say what happens to the slow nodes that a trainer has or had."""
    if plan is None or record.state.is_final:
        return ()
    memory, sentences = plan.memory, []
    for name, one in sorted(memory.slow_nodes.items()):
        pair = memory.replacing.get(name)
        if pair is not None and pair.trainer_id == record.trainer_id:
            sentences.append(
                f"{name} is slow ({_how_slow(one)}) and stays until {pair.node} trains in its"
                " place."
            )
        elif name in observed and plan.assignment.get(name) == record.trainer_id:
            sentences.append(
                f"{name} is slow ({_how_slow(one)}) and stays: no other node is worth more here,"
                f" or a change would not pay back within {settings.t_fwd_s:.0f} s."
            )
        elif one.trainer_id == record.trainer_id and name not in plan.assignment:
            sentences.append(f"{name} is left out because it is slow ({_how_slow(one)}).")
    return tuple(sentences)


def _how_slow(one: SlowNode) -> str:
    return f"{one.fraction:.2f} of the others' throughput"


def _ago(seconds: float) -> str:
    return "now" if seconds < 2.0 else f"{seconds:.0f} s ago"


def _counts_on(one: SlowNode, settings: Settings, now_s: float) -> str:
    """Say when its remembered fraction will have risen so far that it is forgotten."""
    left = (1.0 - fraction_now(one, settings, now_s)) / (1.0 - forgotten_above(settings))
    left_s = settings.straggler_memory_s * max(0.0, math.log2(left))
    return f"that counts for {left_s / 60.0:.0f} min more"
