"""The phases of a training loop, as one worker goes through them, and the changes between them.

A run that asks for another batch without a step, or leaves its loop early, is the script's doing:
the table allows it, and ``Run`` refuses it where it must, with a code. A change that the table does
not name is a fault of ours. It is made nevertheless, and the log says it once: what a user trains
must not end by our book-keeping. Where ``BFT_STRICT_PHASES`` is set, as in our tests, it raises.

The end is no phase: ``Control.is_over`` tells it, which also holds in what runs after the script.
"""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

STRICT: Final = "BFT_STRICT_PHASES"  # in the environment: a forbidden change raises
_IS_STRICT = bool(os.environ.get(STRICT))


class RunPhase(enum.Enum):
    """Phases of a worker's loop."""

    OUTSIDE = "outside"  # before run.epochs()
    JOINING = "joining"  # in the loops, without the state of the run
    REHEARSING = "rehearsing"  # has a batch of discarded data
    REHEARSED = "rehearsed"  # stepped with it, for nothing
    BETWEEN = "between batches"  # has the state of the run; in epochs and between them
    WORKING = "in a pass"  # has samples of a batch, and has not called step() for them
    UNCOUNTED = "after a pass"  # which was not the last over its batch: what follows is undone


_P = RunPhase
CHANGES: Final[Mapping[RunPhase, frozenset[RunPhase]]] = {
    _P.OUTSIDE: frozenset({_P.JOINING}),
    # A commit may wait, or the run is complete: then there is nothing to rehearse.
    _P.JOINING: frozenset({_P.REHEARSING, _P.BETWEEN}),
    # The script left its loop over the rehearsal, and began another, for which a commit waits.
    _P.REHEARSING: frozenset({_P.REHEARSED, _P.REHEARSING, _P.BETWEEN}),
    _P.REHEARSED: frozenset({_P.REHEARSING, _P.JOINING, _P.BETWEEN}),
    _P.BETWEEN: frozenset({_P.WORKING}),
    # The script left its loop without a step, and began another.
    _P.WORKING: frozenset({_P.BETWEEN, _P.UNCOUNTED, _P.WORKING}),
    # The same after a step, while it still holds the loop that it left.
    _P.UNCOUNTED: frozenset({_P.BETWEEN, _P.WORKING}),
}
_IN_REHEARSAL = frozenset({_P.REHEARSING, _P.REHEARSED})
_WITH_BATCH = frozenset({_P.REHEARSING, _P.WORKING})
_COUNTED = frozenset({_P.BETWEEN, _P.WORKING})
_WITH_STATE = _COUNTED | {_P.UNCOUNTED}


class RunLife:
    """The present phase of a run."""

    __slots__ = ("_reported", "phase")

    def __init__(self) -> None:
        self.phase = RunPhase.OUTSIDE
        self._reported: set[tuple[RunPhase, RunPhase]] = set()

    def becomes(self, phase: RunPhase) -> None:
        """Change the phase.

        Raises:
            RuntimeError: the table does not name the change, and ``BFT_STRICT_PHASES`` is set.
        """
        if phase not in CHANGES[self.phase]:
            self._report(phase)
        self.phase = phase

    def steps(self, *, is_last: bool) -> None:
        """Go on from a call of step(); ``is_last``: no further pass over the batch follows."""
        if self.is_rehearsing:
            self.becomes(RunPhase.REHEARSED)
        elif is_last:
            self.becomes(RunPhase.BETWEEN)
        else:
            self.becomes(RunPhase.UNCOUNTED)

    @property
    def is_looping(self) -> bool:
        """Whether the script has begun its loop over run.epochs()."""
        return self.phase is not RunPhase.OUTSIDE

    @property
    def is_rehearsing(self) -> bool:
        """Whether the script works on discarded data."""
        return self.phase in _IN_REHEARSAL

    @property
    def has_state(self) -> bool:
        """Whether this worker has entered a generation, and so has the state of the run."""
        return self.phase in _WITH_STATE

    @property
    def has_batch(self) -> bool:
        """Whether the script has samples, and has not called step() for them."""
        return self.phase in _WITH_BATCH

    @property
    def is_counted(self) -> bool:
        """Whether what the script does now is part of the run's state."""
        return self.phase in _COUNTED

    def _report(self, phase: RunPhase) -> None:
        change = (self.phase, phase)
        words = f"the run was {self.phase.value} and became {phase.value}"
        text = f"{words}, which its table of phases forbids"
        if _IS_STRICT:
            raise RuntimeError(text)
        if change not in self._reported:
            self._reported.add(change)
            sys.stderr.write(f"bftrainer: {text}. Training goes on; please report it.\n")


@dataclass(slots=True, kw_only=True)
class Pass:
    """What changes from pass to pass over a batch."""

    batch: int = 0  # global size of the script's batch, now or last; in a rehearsal, its samples
    is_last: bool = True  # over that batch
    is_empty: bool = False  # this worker has no samples in it
    undo: dict[str, Any] | None = None  # light state, for what follows a pass that is not the last


@dataclass(slots=True, kw_only=True)
class LastStep:
    """What the boundary after a step must know of it."""

    short_batch: int | None = None  # its global size, if some workers had no samples
    # Where the model is sharded, what all workers of the node know:
    has_news: bool = False  # of a generation that abandons this one
    is_save_due: bool = False
