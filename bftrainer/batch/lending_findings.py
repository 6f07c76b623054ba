"""Finds what the policy's ``lend`` leaves idle, and where it lends nothing. Pure.

Called by ``bftrainer doctor`` with the nodes as the batch system shows them, before the policy
hides what it does not lend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bftrainer.model.cluster import Node
from bftrainer.model.parts import NOT_SHARED, Lend
from bftrainer.model.site import Finding, Weight

GUIDE = "bftrainer help slurm-site"
HIDDEN = "BFT-2120"
PROPOSED = "lend: auto"
RELOAD = "bftrainer policy check FILE, then bftrainer policy reload"


def findings(nodes: Iterable[Node], lend: Lend, *, lends_parts: bool = True) -> tuple[Finding, ...]:
    """Return what could be lent and is not, by the reason.

    Args:
        nodes: of the snapshot, not as the policy lends them.
        lend: the policy's.
        lends_parts: whether the batch system's pilots can have less than a node.
    """
    with_gpus = [node for node in nodes if node.gpus]
    if lend is Lend.GPUS and not any(node.lends for node in with_gpus):
        return (_nothing_lent(with_gpus),)
    if lend is Lend.NODES:
        shared = [node for node in with_gpus if node.lends and node.is_shared]
        if not shared:
            return ()
        return (_hidden(shared),)
    if not lends_parts:
        return tuple(
            _never_in_parts(reason, names)
            for reason, names in _by_reason(with_gpus, lambda _: True).items()
        )
    return tuple(
        _as_a_whole(reason, names, lend) for reason, names in whole_nodes(with_gpus, lend).items()
    )


def whole_nodes(nodes: Iterable[Node], lend: Lend) -> dict[str, list[str]]:
    """Return the nodes whose GPUs are not lent one by one although they should be, by reason."""
    return _by_reason(nodes, lambda node: node.is_shared or lend is Lend.GPUS)


def _by_reason(nodes: Iterable[Node], is_wanted: Callable[[Node], bool]) -> dict[str, list[str]]:
    names_of: dict[str, list[str]] = {}
    for node in nodes:
        if node.why_whole not in ("", NOT_SHARED) and is_wanted(node):
            names_of.setdefault(node.why_whole, []).append(node.name)
    return names_of


def hidden_sentence(shared: Sequence[Node]) -> str:
    """Return what whole nodes leave idle of nodes that ordinary jobs share."""
    n_gpus = sum(node.gpus for node in shared)
    return (
        f"Ordinary jobs share {_counted([node.name for node in shared])} with {n_gpus} GPUs: while "
        "a job uses one GPU of a node, its other GPUs are not lent."
    )


def _hidden(shared: Sequence[Node]) -> Finding:
    return Finding(
        code=HIDDEN,
        weight=Weight.LOSS,
        setting="lend: nodes",
        cost=f"{hidden_sentence(shared)} 'bftrainer whatif' says what they are worth.",
        remedy=PROPOSED,
        command=RELOAD,
    )


def _as_a_whole(reason: str, names: Sequence[str], lend: Lend) -> Finding:
    manner = "not lent" if lend is Lend.GPUS else "lent as a whole"
    remedy = "lend: auto, or the setting that the reason names"
    if lend is Lend.AUTO:
        remedy = "the setting that the reason names, or nothing: idle nodes are lent all the same"
    return Finding(
        code="BFT-2121",
        weight=Weight.LOSS,
        setting=f"lend: {lend}",
        cost=f"{_counted(names).capitalize()} {_be(names)} {manner}. {reason}",
        remedy=remedy,
        command=GUIDE,
    )


def _never_in_parts(reason: str, names: Sequence[str]) -> Finding:
    return Finding(
        code="BFT-2121",
        weight=Weight.LOSS,
        setting="lend: auto",
        cost=f"{_counted(names).capitalize()} {_be(names)} lent as a whole. {reason}",
        remedy="nothing, or lend: nodes, which does the same here and says so",
        command=RELOAD,
    )


def _nothing_lent(nodes: Sequence[Node]) -> Finding:
    reasons = list(dict.fromkeys(node.why_whole for node in nodes if node.why_whole))
    return Finding(
        code="BFT-2122",
        weight=Weight.STOP,
        setting="lend: gpus",
        cost=" ".join(("No node lends GPUs one by one, so nothing is lent.", *reasons[:3])),
        remedy="lend: auto",
        command=RELOAD,
    )


def _counted(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"node {names[0]}"
    return f"{len(names)} nodes ({names[0]} and others)"


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
