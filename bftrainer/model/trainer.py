"""A trainer as users submit it and as everybody sees it: plain data.

Made by ``cli submit``, kept by the journal, decided on by ``decide``, run by
``actuate`` and the agents.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

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


class Launch(enum.StrEnum):
    """Where a program of its own is started."""

    EVERY = "every"  # once on every node of the trainer
    FIRST = "first"  # on the first only; it reaches the others by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContract:
    """How a program that is resized by restart is asked to save (docs/howto/train-command.md)."""

    launch: Launch = Launch.EVERY
    stop_signal: str = "USR1"  # write a checkpoint and end; "none": the control file alone
    save_signal: str = "none"  # write a checkpoint and go on
    saved_status: int = 85  # exit status: the checkpoint is written, start me again
    grace_s: float = 60.0  # at most so long from the request to the end; then SIGKILL


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
    workers_per_node: int = 1  # sizes and decisions count nodes
    gres: str = ""  # what every node has to have, as sbatch --gres; "": anything
    constraint: str = ""  # features of every node, as sbatch --constraint
    epochs: int | None = None  # exactly one of epochs, samples; None/None: the script's own
    samples: int | None = None
    checkpoint_dir: str = ""  # absolute, on a file system all nodes see
    checkpoint_interval_s: float = 60.0
    curve: Curve | None = None  # None: auto (concave guess until measured)
    runtime: str = "torch"
    weight: float = 1.0
    utility: Curve | None = None  # what the objective "utility" maximises; the simulator's
    environment: tuple[tuple[str, str], ...] = ()
    max_failures: int | None = None  # in all; None: only those in a row count
    contract: CheckpointContract | None = None  # of programs that are resized by restart
    backend: str = "auto"  # what gradients are averaged with: auto, gloo or nccl


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
    node_s: float = 0.0  # node-seconds attained by then
    backend: str = ""  # of this generation, and why; "": one worker, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """How far a training was; a program may count only some of these."""

    step: int = 0
    epoch: int = 0
    samples: int = 0

    def is_beyond(self, other: Mark) -> bool:
        """Whether any count is greater than there."""
        return self.step > other.step or self.epoch > other.epoch or self.samples > other.samples

    def joined(self, other: Mark) -> Mark:
        """Return the greater of each count."""
        return Mark(
            step=max(self.step, other.step),
            epoch=max(self.epoch, other.epoch),
            samples=max(self.samples, other.samples),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """Failures without net progress between: what counts against ``failure_budget``."""

    count: int = 0
    best: Mark = field(default_factory=Mark)  # the furthest it has ever been
    start: Mark | None = None  # the furthest it has started from in this row
    cause: str = ""  # of the last one, as are the fields below
    node: str = ""
    log_path: str = ""
    next_try_s: float = 0.0  # no worker is started before; the monotonic clock of the machine
    losses: int = 0  # times that its agents died on nodes that were fine; the first is no failure


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeThroughput:
    """Statistics of the throughput at one size (``bftrainer.profile.measure``)."""

    size: int
    count: float = 0.0  # observations in the window, less what has faded
    mean_samples_per_s: float = 0.0
    m2: float = 0.0  # sum of squared deviations from the mean, same window
    seen_s: float = 0.0  # when the last one was taken
    told_count: float = 0.0  # what there was when decisions were last told
    told_error: float = 1.0  # relative standard error then


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartCosts:
    """What stopping and starting took, of a trainer that is resized by restart."""

    stop_s: float | None = None  # from the request for a checkpoint to the last exit
    start_s: float | None = None  # from there until all say that they run
    unsaved: int = 0  # stops in which some program wrote no checkpoint
    unsaved_reason: str = ""  # of the last of them


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """Rescale costs and throughput as observed; empty until known."""

    rescale_up_s: float | None = None
    rescale_down_s: float | None = None
    samples_per_s_by_size: tuple[tuple[int, float], ...] = ()  # what decisions are told
    throughput: tuple[SizeThroughput, ...] = ()  # what is behind it, by size
    restart: RestartCosts | None = None  # None: resized in place, or never started


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
    # (worker, pilot) of all who lived then: only they can have been in it or one before.
    workers: tuple[tuple[str, str], ...] = ()
    copy_holders: tuple[str, ...] = ()  # pilots that were told to hold copies of its state
    failing: FailureRow = field(default_factory=FailureRow)
    cancelled_s: float | None = None  # when its user asked for its end


def as_decided(record: TrainerRecord) -> TrainerRecord:
    """Return it without what only its workers need: every decision keeps what it was told."""
    return replace(record, spec=replace(record.spec, args=(), environment=()))
