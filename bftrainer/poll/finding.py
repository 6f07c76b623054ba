"""What a site's setting costs its ordinary jobs, or us: one finding per setting.

Adapters make them (``BatchSystem.findings``); ``bftrainer doctor`` prints them and the
daemon writes them to its log when it starts.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Weight(enum.StrEnum):
    """Whom it hurts."""

    HARM = "harm"  # ordinary jobs would notice
    LOSS = "loss"  # we would get less, or nothing
    UNKNOWN = "unknown"  # it could not be looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One setting that is not as it should be."""

    code: str  # stable
    weight: Weight
    setting: str  # as the batch system spells it, with its value
    cost: str  # one sentence; measured where it has a figure
    remedy: str  # the line to change
