"""Says which agents the daemon cannot reach, and what that means for their trainers. Pure."""

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
