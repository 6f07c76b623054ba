"""What a policy went by, in its own terms: names, numbers and units. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Term:
    """One number that a trainer's size follows from."""

    name: str  # as users read it: "place in the queue"
    value: float  # one that is not finite is not shown
    unit: str = ""  # "": a plain number


Terms = Mapping[str, tuple[Term, ...]]  # by trainer, most important first
