"""What a site setting costs ordinary jobs or us: one finding per setting.

Adapters make them (``BatchSystem.findings``); ``bftrainer doctor`` prints them and the daemon logs
them at start.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Weight(enum.StrEnum):
    """Who is affected."""

    HARM = "harm"  # ordinary jobs
    LOSS = "loss"  # we get fewer nodes, or none
    UNKNOWN = "unknown"  # could not be checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a daemon has measured here, and goes by; None: nothing yet, or no daemon."""

    end_s: float | None = None  # from a pilot's cancel request until its node is usable
    start_s: float | None = None  # from a pilot's start until its agent connected
    promise_s: float = 1.0  # promised time until a released node is free
    max_nodes: int | None = None  # the policy's limit of nodes at once; None: there is none


NOTHING = Measured()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One setting that should be changed."""

    code: str  # stable
    weight: Weight
    setting: str  # as the batch system writes it, with its value
    cost: str  # one sentence; figures in it are measured
    remedy: str  # the line to change
