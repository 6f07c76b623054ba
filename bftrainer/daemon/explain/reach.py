"""Says which agents are not heard, and what that means for their trainers. Pure."""

from __future__ import annotations

from collections.abc import Collection

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
    names = ", ".join(sorted(nodes)[:SHOWN]) + (", ..." if len(nodes) > SHOWN else "")
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
