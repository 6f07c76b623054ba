"""The trials of a study as stored and as a rule sees them, and its verdicts. Pure data.

The study's loop (``study.loop``) and the simulator build ``StudyTrial``s, ask a ``StudyRule``, and
carry its ``Verdicts`` out. A rule keeps nothing between two calls: after a crash the same trials
give the same verdicts. Values are always minimised; a study that maximises passes them negated.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class TrialStage(enum.StrEnum):
    """The stage of a trial."""

    ACTIVE = "active"  # trains, or waits for nodes
    WAITING = "waiting"  # has used up its budget and waits for the rule; has no nodes
    COMPLETE = "complete"  # has trained to the full budget, or its script has ended
    STOPPED = "stopped"  # ended by the rule or the user
    FAILED = "failed"  # and is not tried again

    @property
    def is_over(self) -> bool:
        """Return whether it never trains again."""
        return self in (TrialStage.COMPLETE, TrialStage.STOPPED, TrialStage.FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialValue:
    """A metric that a trial reported."""

    units: int  # epochs or samples trained by then
    value: float  # to be minimised
    order: float  # when it was reported; equal ones go by the trial's number


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTrial:
    """A trial as a rule sees it."""

    number: int  # 0, 1, ... in the order of creation
    stage: TrialStage
    budget: int  # units granted so far
    values: tuple[TrialValue, ...] = ()  # ascending in ``units``
    bracket: int = 0
    parent: int | None = None  # whose state it started from
    stood: Mapping[int, int] = field(default_factory=dict)  # rung it left -> units of its value

    def at(self, budget: int) -> TrialValue | None:
        """Return the newest value not beyond a budget; None: none yet."""
        for value in reversed(self.values):
            if value.units <= budget:
                return value
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A trial to create."""

    budget: int
    bracket: int = 0
    parent: int | None = None  # start from its state, with its parameters, perturbed
    nodes: int | None = None  # its size; None: as the study says


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The actions that a rule wants now."""

    grow: Mapping[int, int] = field(default_factory=dict)  # trial -> new budget
    stop: Mapping[int, str] = field(default_factory=dict)  # trial -> why, one sentence
    start: Sequence[Start] = ()
    nodes: Mapping[int, int] = field(default_factory=dict)  # trial that grows -> its size then
    is_over: bool = False  # nothing starts or grows any more, whatever the active ones report


class StudyRule(Protocol):
    """A rule of stopping and promotion."""

    @property
    def most(self) -> int:
        """Full budget of a trial, in units."""

    def verdicts(self, trials: Sequence[StudyTrial], room: int) -> Verdicts:
        """Judge the trials.

        Args:
            trials: all of the study, in order of their numbers.
            room: how many more may be active; at most so many are grown and started together.
        """

    def describe(self) -> Mapping[str, Any]:
        """Return its name and settings, for ``study status``."""


class CountedRule(StudyRule, Protocol):
    """A rule of a study document, which knows how many trials it is about."""

    @property
    def wanted(self) -> int:
        """Trials that it starts without another one's state."""


Scalar = bool | int | float | str  # the value of a parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTrial:
    """A trial in the storage."""

    number: int
    end: TrialStage | None  # None: it has not ended
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
