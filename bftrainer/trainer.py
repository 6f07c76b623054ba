"""A trainer as users submit it and as everybody sees it: plain data.

Made by ``cli submit``, kept by the journal, decided on by ``decide``, run by
``actuate`` and the agents.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from milp.problem import Curve


class TrainerState(enum.StrEnum):
    """Life of a trainer. Only the last three are final."""

    QUEUED = "queued"  # submitted, has never run
    RUNNING = "running"  # at least one worker in a generation, or forming its first
    PARKED = "parked"  # size 0 after having run; its state is on disk
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self in (TrainerState.FINISHED, TrainerState.FAILED, TrainerState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """What the user asked for; never changes after submission."""

    name: str
    user: str
    script: str  # absolute path
    args: tuple[str, ...] = ()
    cwd: str = "/"
    interpreter: str = ""  # absolute path of the user's python
    n_min: int = 1
    n_max: int = 1
    epochs: int | None = None  # exactly one of epochs, samples; None/None: the script's own
    samples: int | None = None
    checkpoint_dir: str = ""  # absolute, on a file system all nodes see
    checkpoint_interval_s: float = 60.0
    curve: Curve | None = None  # None: auto (concave guess until measured)
    runtime: str = "torch"
    weight: float = 1.0
    utility: Curve | None = None  # what the objective "utility" maximises; the simulator's
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgress:
    """Last thing the trainer told us."""

    generation: int = 0
    size: int = 0
    step: int = 0
    epoch: int = 0
    samples: int = 0
    samples_per_s: float = 0.0
    reported_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """Rescale costs and throughput as observed; empty until known."""

    rescale_up_s: float | None = None
    rescale_down_s: float | None = None
    samples_per_s_by_size: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerRecord:
    """A trainer in the daemon's memory and in the journal's projection."""

    trainer_id: str  # "t1", "t2", … in order of submission = FCFS order
    spec: TrainerSpec
    state: TrainerState
    submitted_s: float
    started_s: float | None = None
    ended_s: float | None = None
    reason: str = ""  # why it is in this state, one sentence
    progress: TrainerProgress = field(default_factory=TrainerProgress)
    costs: MeasuredCosts = field(default_factory=MeasuredCosts)
    rescales: int = 0
    failures: int = 0
    last_generation: int = 0  # greatest generation ever announced
