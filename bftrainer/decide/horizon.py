"""Rescales that cost more than decisions look ahead. Pure.

``bftrainer doctor`` and ``policy check`` call ``findings`` with what a daemon has measured,
``whatif`` with the costs that it assumes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bftrainer.model.quantities import quantity
from bftrainer.model.site import Finding, Weight
from bftrainer.model.trainer import TrainerRecord

CODE: Final = "BFT-2119"


def longest_rescale_s(trainers: Iterable[TrainerRecord]) -> float | None:
    """Return the longest R_up or R_dw of the trainers that have not ended, s; None: none is known.

    Those that were measured, or that a program's start and stop add up to.
    """
    longest_s: float | None = None
    for trainer in trainers:
        if trainer.state.is_final:
            continue
        for pause_s in (trainer.costs.rescale_up_s, trainer.costs.rescale_down_s):
            if pause_s is not None:
                longest_s = max(pause_s, longest_s or 0.0)
    return longest_s


def findings(rescale_s: float | None, t_fwd_s: float, *, whose: str) -> tuple[Finding, ...]:
    """Return a finding if a rescale costs more than T_fwd.

    A trainer of C nodes that grows to N gains T_fwd (O(N) - O(C)) and loses R O(C) (eq. 16 of the
    BFTrainer paper): with R > T_fwd only one that more than doubles its throughput grows, and nodes
    that join mostly stay unused until a trainer starts.

    Args:
        rescale_s: R, the longest pause of a rescale; None: it is not known.
        t_fwd_s: the forward-looking time.
        whose: rescale it is, in words: "measured", "assumed".
    """
    if rescale_s is None or rescale_s <= t_fwd_s:
        return ()
    cost = (
        f"Decisions look {t_fwd_s:g} s ahead, and a rescale ({whose}: {quantity(rescale_s)} s)"
        " costs more than that: only a trainer that more than doubles its throughput grows, other"
        " nodes that come free stay unused. Policies that never rescale may do more here."
    )
    in_s = quantity(rescale_s, is_grouped=False)
    remedy = (
        f"make rescales shorter (docs/design/elastic-runtime.md), or see what 'bftrainer whatif"
        f" --cost pause_up={in_s} --cost pause_down={in_s} --policy milp --policy"
        f" no-rescale --t-fwd {t_fwd_s:g} --t-fwd {10 * t_fwd_s:g}' says of your trace, and set"
        " t_fwd_s or policy"
    )
    setting = f"t_fwd_s {t_fwd_s:g}"
    return (Finding(code=CODE, weight=Weight.LOSS, setting=setting, cost=cost, remedy=remedy),)


def sentence(finding: Finding) -> str:
    """Return a finding as one line: code, setting, cause, next step."""
    return f"{finding.code} {finding.setting}: {finding.cost} Change: {finding.remedy}"
