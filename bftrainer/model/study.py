"""The data of a study's trials in the daemon: identity, reports and views.

A trial is a trainer with a ``TrialTag``. Its loop is in ``bftrainer.study``, outside the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_REPORTS = 128  # of a trainer; beyond, every second one is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTag:
    """Which trial of which study a trainer is."""

    study: str  # unique among the user's studies: its name and a suffix
    number: int  # of the trial, 0, 1, ...
    attempt: int = 0  # 1: it is tried again after a failure
    most: int | None = None  # full budget in the unit of ``TrainerSpec``; see ``waits_at``
    parameters: str = "{}"  # JSON object, given to the script as BFT_PARAMETERS

    @property
    def key(self) -> tuple[str, int, int]:
        """What no two trainers of a user share."""
        return self.study, self.number, self.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A metric as ``run.report`` gave it."""

    value: float
    step: int = 0  # committed updates by then
    epoch: int = 0  # complete epochs by then
    samples: int = 0
    reported_s: float = 0.0  # when the daemon heard of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialView:
    """A trial's trainer in short."""

    trainer_id: str
    tag: TrialTag
    state: str  # TrainerState value
    budget: int | None  # epochs or samples granted so far
    waits_at_rung: bool  # its budget is used up and its study is to decide
    is_held: bool
    nodes: int
    samples: int
    epoch: int
    node_s: float
    reports: tuple[Report, ...]
    checkpoint_dir: str
    reason: str = ""
    ended_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """All trials of a study that the daemon knows."""

    study: str
    change: int  # grows whenever something in it changes; starts anew with the daemon
    incarnation: int  # of the daemon
    nodes: int  # idle and held by the daemon
    trials: tuple[TrialView, ...]
