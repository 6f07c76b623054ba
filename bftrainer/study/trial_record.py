"""What a study's storage holds of a trial, as plain data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from bftrainer.study.trials import Stage

Scalar = bool | int | float | str  # the value of a parameter


class End(enum.StrEnum):
    """How a trial has ended, in Optuna's words."""

    COMPLETE = "COMPLETE"
    PRUNED = "PRUNED"
    FAIL = "FAIL"


ENDS = {Stage.COMPLETE: End.COMPLETE, Stage.STOPPED: End.PRUNED, Stage.FAILED: End.FAIL}
STAGES = {end: stage for stage, end in ENDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrial:
    """A trial to be created."""

    parameters: Mapping[str, Scalar]
    budget: int  # with which it starts
    bracket: int = 0
    parent: int | None = None
    nodes: int | None = None  # that it starts with, if a plan says so


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial:
    """A trial in the storage."""

    number: int
    end: End | None  # None: it has not ended
    parameters: Mapping[str, Scalar]
    budget: int  # with which it started
    bracket: int = 0
    parent: int | None = None
    nodes: int | None = None
    granted: int = 0  # units, when it last went on from a rung; 0: it never did
    stood: Mapping[int, int] = field(default_factory=dict)  # rung it left -> units of its value
    values: Mapping[int, float] = field(default_factory=dict)  # units -> as reported
    orders: Mapping[int, float] = field(default_factory=dict)  # units -> when; once it has ended
    reason: str = ""  # why it has ended
    node_s: float = 0.0  # node-seconds it used, once it has ended
    began_s: float | None = None
    ended_s: float | None = None
