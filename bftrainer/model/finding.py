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
class Measured:
    """What a daemon has measured here; None: nothing yet, or there is no daemon."""

    end_s: float | None = None  # from a pilot's cancel request until its node is usable
    start_s: float | None = None  # from a pilot's start until its agent has come
    promise_s: float = 1.0  # a node that is given back is free by then


NOTHING = Measured()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One setting that is not as it should be."""

    code: str  # stable
    weight: Weight
    setting: str  # as the batch system spells it, with its value
    cost: str  # one sentence; measured where it has a figure
    remedy: str  # the line to change
