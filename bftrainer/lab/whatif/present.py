"""Which GPUs a site could lend one by one at this moment, and does not. Pure.

A look at the running site tells it beside the answer that comes from a log: the proposal of
``bftrainer doctor`` (BFT-2120), in the same words, with what the present moment says of its gain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bftrainer.batch import lending_findings
from bftrainer.lab.report_page import Section
from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.parts import Lend
from bftrainer.model.quantities import quantity

DAY_H = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LendingNow:
    """GPUs beside jobs that whole nodes leave idle, at the moment of the look."""

    code: str  # of the finding of doctor
    cost: str  # what is not lent, in a sentence
    nodes: int  # that ordinary jobs share
    gpus: int  # of these nodes
    free_gpus: int  # of them, on nodes in use: whole nodes leave these unlent
    gain_gpu_hours_per_day: float  # if it were all day as it is now
    remedy: str  # the change of the policy
    command: str  # that goes on from there


def lending_now(nodes: Iterable[Node], lend: Lend) -> LendingNow | None:
    """Return what lending GPUs one by one would gain now; None: the policy does, or nothing.

    Args:
        nodes: of the look, not as the policy lends them.
        lend: the policy's.
    """
    if lend is not Lend.NODES:
        return None
    shared = [node for node in nodes if node.lends and node.is_shared]
    if not shared:
        return None
    n_free = 0
    for node in shared:
        if node.state is NodeState.ALLOCATED:  # an idle one is lent as a whole
            n_free += sum(lent.n_free for lent in node.lends)
    return LendingNow(
        code=lending_findings.HIDDEN,
        cost=lending_findings.hidden_sentence(shared),
        nodes=len(shared),
        gpus=sum(node.gpus for node in shared),
        free_gpus=n_free,
        gain_gpu_hours_per_day=DAY_H * n_free,
        remedy=lending_findings.PROPOSED,
        command=lending_findings.RELOAD,
    )


def lending_sections(now: LendingNow | None) -> tuple[Section, ...]:
    """Return the proposal as a section of a report; (): there is none."""
    if now is None:
        return ()
    gain = (
        f"At this moment {now.free_gpus} of them are free beside jobs: that is "
        f"{quantity(now.gain_gpu_hours_per_day)} GPU-hours a day more, if it were all day as it is "
        "now. 'bftrainer whatif --harm' says what they gain over your log, and what jobs would "
        "notice."
    )
    return (
        Section(
            title=f"GPUs one by one: {now.remedy} ({now.code})",
            text=(now.cost, gain),
            items=(f"To lend them: {now.remedy} in the policy; {now.command}.",),
        ),
    )
