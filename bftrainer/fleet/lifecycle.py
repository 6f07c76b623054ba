"""The phases of pilots and of workers, and the changes that are possible.

A phase changes by its table alone. A change that the table does not name is a word that came too
late, or twice: it is ignored. The latest changes are kept for users (``bftrainer explain``).
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Final, NamedTuple

KEPT: Final = 16  # of the latest changes


class PilotPhase(enum.StrEnum):
    """Phases of a pilot, from its request to its end."""

    OPENED = "opened"  # about to be requested
    SUBMITTED = "submitted"  # the batch system has it
    RUNNING = "running"  # its agent is connected
    SILENT = "silent"  # its agent was lost without a word, and may come back
    RETIRED = "retired"  # trainers get its node no more, because the daemon drains
    PREEMPTED = "preempted"  # its agent has to leave: the batch system takes the node
    LEFT = "left"  # its agent left by itself
    COMPLETING = "completing"  # the batch system ends its job
    CANCELLED = "cancelled"  # we asked for its end
    GIVEN_BACK = "given back"  # we asked for its end, for an ordinary job
    ENDED = "ended"


class WorkerPhase(enum.StrEnum):
    """Phases of a worker's life."""

    STARTING = "starting"  # being forked, importing, building, rehearsing
    WARM = "warm"  # ready to join
    MEMBER = "member"  # in the current generation
    LEAVING = "leaving"  # not in the committed generation, exits at the boundary
    GONE = "gone"


_P, _W = PilotPhase, WorkerPhase
ASKED: Final = frozenset({_P.CANCELLED, _P.GIVEN_BACK})
_OVER = ASKED | {_P.ENDED}
_GOES = _OVER | {_P.RETIRED, _P.PREEMPTED, _P.LEFT, _P.COMPLETING}
IN_USE: Final = frozenset({_P.OPENED, _P.SUBMITTED, _P.RUNNING, _P.SILENT})  # not leaving

PILOT_CHANGES: Final[Mapping[PilotPhase, frozenset[PilotPhase]]] = {
    # An agent may connect before the batch system has answered the submission.
    _P.OPENED: _GOES | {_P.SUBMITTED, _P.RUNNING, _P.SILENT},
    # The agent of an earlier daemon's pilot may not come: silent without having run for us.
    _P.SUBMITTED: _GOES | {_P.RUNNING, _P.SILENT},
    _P.RUNNING: _GOES | {_P.SILENT},
    _P.SILENT: _GOES | {_P.RUNNING},  # only its connection was lost
    _P.RETIRED: _OVER | {_P.COMPLETING, _P.SUBMITTED},  # the drain may be called off
    _P.PREEMPTED: _OVER | {_P.COMPLETING},  # the batch system does not take that back
    _P.LEFT: _OVER | {_P.COMPLETING},  # its agent does not start again
    _P.COMPLETING: _OVER,  # begun is not taken back, even if its agent did not hear of it
    _P.CANCELLED: frozenset({_P.ENDED}),  # nor what was asked for
    _P.GIVEN_BACK: frozenset({_P.ENDED}),
    _P.ENDED: frozenset(),
}
WORKER_CHANGES: Final[Mapping[WorkerPhase, frozenset[WorkerPhase]]] = {
    # An agent that was away repeats the newest messages only: a phase may be left out.
    _W.STARTING: frozenset({_W.WARM, _W.MEMBER, _W.LEAVING, _W.GONE}),
    _W.WARM: frozenset({_W.MEMBER, _W.LEAVING, _W.GONE}),
    _W.MEMBER: frozenset({_W.LEAVING, _W.GONE}),  # also when it enters the next generation
    _W.LEAVING: frozenset({_W.GONE}),  # the next worker on its node is another one
    _W.GONE: frozenset(),
}


class Change(NamedTuple):
    """A change of phase."""

    at_s: float
    phase: str
    why: str


class Lifecycle:
    """Base of dataclasses with a ``phase``; the history is no field, so no record has it."""

    __slots__ = ("history",)
    CHANGES: ClassVar[Mapping[Any, frozenset[Any]]]
    phase: Any

    def __post_init__(self) -> None:
        self.history: deque[Change] = deque(maxlen=KEPT)

    def begins(self, at_s: float, why: str = "") -> None:
        """Note the first phase."""
        self.history.append(Change(at_s, self.phase.value, why))

    def becomes(self, phase: Any, at_s: float, why: str = "") -> bool:
        """Change the phase if the table names the change; return whether it did."""
        if phase not in self.CHANGES[self.phase]:
            return False
        self.phase = phase
        self.history.append(Change(at_s, phase.value, why))
        return True

    def in_words(self, ahead_s: float = 0.0) -> str:
        """Return the history in words, local times; the wall clock is ``ahead_s`` of its own."""
        words: list[str] = []
        for change in self.history:
            at = time.strftime("%H:%M:%S", time.localtime(change.at_s + ahead_s))
            why = f" ({change.why})" if change.why else ""
            words.append(f"{change.phase} {at}{why}")
        return ", ".join(words)
