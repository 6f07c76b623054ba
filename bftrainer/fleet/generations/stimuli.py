"""The stimuli of a generation machine, as values: everything it reacts to.

A machine's state and the stimuli that follow determine its instructions, so a journalled sequence
can be replayed (``rescale_log``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from bftrainer.fleet.generations.members import NodeOffer
from bftrainer.ground import protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsSet:
    """The plan gives these nodes; a member in ``staying`` leaves once its replacement trains.

    ``batches``: the global batch on 1, 2, … nodes; empty: the trainer admits only its own.
    """

    offers: tuple[NodeOffer, ...]
    staying: Mapping[str, str] = field(default_factory=dict)  # node -> replacement's node
    batches: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindUp:
    """Start no more workers; members save and leave within ``grace_s``."""

    grace_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesSet:
    """The user changed the sizes it may have; targets of such a size follow."""

    n_min: int
    n_max: int
    sizes: tuple[int, ...] = ()  # the only ones of these; (): all
    ADDED: ClassVar = frozenset({"sizes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSet:
    """The policy was read again: its times are these."""

    join_window_s: float
    start_timeout_s: float
    no_progress_s: float
    cut_patience_s: float = 0.0  # nodes that cannot reach each other are left out after it
    ADDED: ClassVar = frozenset({"cut_patience_s"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePassed:
    """Nothing happened, but a time limit may be over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMessage:
    """A worker sent a message."""

    worker_id: str
    message: protocol.Message


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEnded:
    """A worker's process ended."""

    worker_id: str
    returncode: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMissing:
    """A connected agent does not know its worker: a loss, not a failure."""

    worker_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLost:
    """An agent and all its workers are gone: a loss, not a failure."""

    pilot_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFailed:
    """A lost agent's pilot was not cancelled by anyone: once is a loss, again a failure."""

    pilot_id: str
    how: str  # it ended, in the batch system's words


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerClosed:
    """The trainer was cancelled or has failed: no worker is of interest any more."""


Stimulus: TypeAlias = (
    TargetsSet
    | WindUp
    | SizesSet
    | LimitsSet
    | TimePassed
    | WorkerMessage
    | WorkerEnded
    | WorkerMissing
    | AgentLost
    | AgentFailed
    | TrainerClosed
)
