"""Keeps a training from going on without the change that a test is about to make."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any


def hold(run: Any, holds: Sequence[Sequence[int]]) -> None:
    """Wait before a step, and so before its vote, until what shall follow can be entered.

    ``holds`` are pairs of a step and a generation: that step not before this generation.
    """
    due = [generation for step, generation in holds if run.step_count + 1 >= step]
    while run.generation < max(due, default=0) and not run._membership.wants_switch():
        time.sleep(0.001)
