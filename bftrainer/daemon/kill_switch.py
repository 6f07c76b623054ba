"""The kill switch: gives all nodes back, takes none, and keeps the trainers queued.

``bftrainer drain --all`` begins it, ``bftrainer resume`` ends it; in between it outlives daemons,
because it is in the journal. ``bftrainer down`` gives back in the same way, and the daemon ends.

A pilot leaves as soon as no worker is on it; workers write a checkpoint first. At the deadline
all pilots are gone: shortly before it, the remaining ones are told to leave at once.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.release import PilotEnds
from bftrainer.journal.journal import Journal
from bftrainer.model.columns import counted
from bftrainer.model.decision import Release

LOG = logging.getLogger("bftrainer.daemon")
KIND: Final = "drain"  # of journal entries
SAID_AGAIN_S: Final = 86_400.0  # the journal drops old entries
END_S: Final = 5.0  # before the deadline: agents are told, then cancelled, then with force
END_SHARE: Final = 0.25  # of a time shorter than four times that


class DrainPhase(enum.StrEnum):
    """Phases of the kill switch."""

    OFF = "off"  # nodes are taken
    DRAINING = "draining"  # an administrator has all nodes given back, and none taken
    ENDING = "ending"  # all nodes are given back because the daemon ends


DRAIN_CHANGES: Final[Mapping[DrainPhase, frozenset[DrainPhase]]] = {
    DrainPhase.OFF: frozenset({DrainPhase.DRAINING, DrainPhase.ENDING}),
    # An administrator may give another limit.
    DrainPhase.DRAINING: frozenset(DrainPhase),
    # Nodes taken again would be lost when the daemon has ended. It may be told to end sooner.
    DrainPhase.ENDING: frozenset({DrainPhase.ENDING}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A drain requested by an administrator."""

    by: str
    since_s: float
    deadline_s: float  # when all nodes are back, at the latest
    is_over: bool = False  # resumed


class Draining:
    """Gives nodes back while it is on; ``tick`` has to be called several times a second."""

    def __init__(
        self,
        *,
        journal: Journal,
        pilots: PilotBook,
        plane: ControlPlane,
        ends: PilotEnds,
        decide_soon: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._journal, self._pilots, self._plane, self._ends = journal, pilots, plane, ends
        self._decide_soon, self._clock = decide_soon, clock
        self._phase = DrainPhase.OFF
        self._reason = ""  # for agents, unless it is off
        self._end_s = 0.0  # when workers are no longer waited for (monotonic)
        self._noted_s = 0.0
        self._drain: Drain | None = None  # in the journal, and not called off
        entry = journal.latest(KIND)
        before = None
        if entry is not None:
            before = entry.payload_if(Drain)
        if before is not None and not before.is_over:
            self._note(before)
            self._start(before)
            LOG.warning("%s", self.sentence())

    @property
    def is_on(self) -> bool:
        """Return whether nodes are given back and none are taken."""
        return self._phase is not DrainPhase.OFF

    def begin(self, by: str, limit_s: float) -> None:
        """Give all nodes back within the limit; of a daemon that ends, the next one obeys."""
        now_s = self._clock()
        drain = Drain(by=by, since_s=now_s, deadline_s=now_s + limit_s)
        self._note(drain)
        self._start(drain)
        LOG.warning("%s", self.sentence())

    def resume(self, by: str) -> bool:
        """Take nodes again; of a daemon that ends, the next one does. Return whether this one."""
        is_ending = self._phase is DrainPhase.ENDING
        if self._drain is None:
            return not is_ending
        self._note(replace(self._drain, is_over=True))
        self._drain = None
        if not self._becomes(DrainPhase.OFF):
            LOG.warning("%s resumes: the next daemon takes nodes again", by)
            return False
        self._pilots.keep_retired()
        self._decide_soon()
        LOG.warning("%s resumes: nodes are taken again", by)
        return True

    def end_daemon(self, reason: str, save_s: float) -> None:
        """Give all nodes back because the daemon ends; workers have ``save_s`` to save."""
        self._becomes(DrainPhase.ENDING)
        self._reason, self._end_s = reason, time.monotonic() + save_s
        self._decide_soon()
        self.tick()

    def tick(self) -> None:
        """Retire pilots, and release those that no worker uses, or all when it is time."""
        if not self.is_on:
            return
        left_s = self._end_s - time.monotonic()
        if self._pilots.retire(max(0.0, left_s)):
            self._decide_soon()  # retired nodes are no offers: their trainers park
        busy: frozenset[str] = frozenset()
        if left_s > 0.0:
            busy = self._plane.trainers.busy_pilots()
        releases = []
        for pilot_id, pilot in self._pilots.pilots.items():
            if not pilot.was_asked and pilot_id not in busy:
                node = pilot.record.node
                releases.append(Release(pilot_id=pilot_id, node=node, reason=self._reason))
        self._ends.release(releases)
        if self._drain is not None and time.monotonic() - self._noted_s > SAID_AGAIN_S:
            self._note(self._drain)

    def sentence(self) -> str:
        """Say who gave all nodes back, and how far that is; "": nobody."""
        if self._drain is None:
            return ""
        since, deadline = _local(self._drain.since_s), _local(self._drain.deadline_s)
        count = len(self._pilots.pilots)
        progress = "done"
        if count:
            nodes = counted(count, "node is", "nodes are")
            progress = f"{nodes} still to be given back, until {deadline}"
        return (
            f"All nodes are given back and none are taken since {since}, as {self._drain.by} "
            f"asked ({progress}); 'bftrainer resume' ends this."
        )

    def _start(self, drain: Drain) -> None:
        self._drain = drain
        if not self._becomes(DrainPhase.DRAINING):
            return
        self._pilots.keep_retired()  # the limit may be another one than before
        left_s = max(0.0, drain.deadline_s - self._clock())
        self._end_s = time.monotonic() + left_s - min(END_S, END_SHARE * left_s)
        self._reason = f"{drain.by} gives all nodes back (bftrainer drain)."
        self._decide_soon()

    def _becomes(self, phase: DrainPhase) -> bool:
        """Change the phase if the table names the change; return whether it did."""
        if phase not in DRAIN_CHANGES[self._phase]:
            return False
        self._phase = phase
        return True

    def _note(self, drain: Drain) -> None:
        self._journal.note(KIND, drain)
        self._noted_s = time.monotonic()


def _local(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
