"""The data of a study's trials in the daemon: identity, reports and views.

A trial is a trainer with a ``TrialTag``. Its loop is in ``bftrainer.study``, outside the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

# In a worker's environment: parameters (JSON), the study and the trial's number.
PARAMETERS, STUDY, TRIAL = "BFT_PARAMETERS", "BFT_STUDY", "BFT_TRIAL"
MOST_REPORTS = 128  # of a trainer; beyond, every second one is dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTag:
    """The study and the number of the trial that a trainer is."""

    study: str  # unique among the user's studies: its name and a suffix
    number: int  # of the trial, 0, 1, ...
    attempt: int = 0  # 1: it is tried again after a failure
    most: int | None = None  # full budget in the unit of ``TrainerSpec``; see ``waits_at``
    parameters: str = "{}"  # JSON object
    maximizes: bool = False  # which values are best
    ADDED: ClassVar = frozenset({"maximizes"})

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        """Environment variables of the trial's script."""
        return (PARAMETERS, self.parameters), (STUDY, self.study), (TRIAL, str(self.number))

    @property
    def key(self) -> tuple[str, int, int]:
        """Key of the trial; no two trainers of a user share it."""
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
class Seen:
    """The state of a study, or of all, that a client has seen."""

    change: int
    incarnation: int  # of the daemon that it saw it from


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyView:
    """The trials of a study that the daemon knows, in order of submission."""

    study: str
    change: int  # grows whenever something in it changes; starts anew with the daemon
    incarnation: int  # of the daemon
    pool_nodes: int  # that the daemon may give to trainers now
    trials: tuple[TrialView, ...]
    is_whole: bool = True  # False: only trials that changed since the client had seen them
    daemon: str = ""  # its public key: another one is another daemon; "" of earlier releases

    @property
    def seen(self) -> Seen:
        """The state that the reader of this view has seen."""
        return Seen(change=self.change, incarnation=self.incarnation)


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCount:
    """A study in a list of studies."""

    study: str
    trials: int  # trainers that the daemon knows
    active: int  # of them not ended and not waiting at a rung
    nodes: int
