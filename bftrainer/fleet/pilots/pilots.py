"""Pilots: requests, observes and ends them. Claims and releases of a plan -> the batch system.

Every request is journalled before the batch system gets it, so that the next daemon finds the
pilots of one that died in between. Everything else is journalled afterwards: a pilot whose
cancellation was not journalled is still seen leaving.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from bftrainer.batch.batch_system import BatchSystem, PilotObservation
from bftrainer.fleet.lifecycle import ASKED, IN_USE, PILOT_CHANGES, Lifecycle, PilotPhase
from bftrainer.fleet.logs import SaidOnce
from bftrainer.journal.projection import UNREADABLE, PilotRecord, PilotState
from bftrainer.model.cluster import Job, JobState, Snapshot
from bftrainer.model.decision import Claim, PilotView, Release
from bftrainer.model.errors import BatchSystemError

LOG = logging.getLogger("bftrainer.pilots")
UNANSWERED_S = 60.0  # until then a pilot may appear that nobody knows to be submitted
FORCE_AFTER_S = 2.0  # then a pilot asked to leave is cancelled with force
STARTS_S = 6.0  # a pilot that starts at once has connected long before
GONE, SILENT = "disconnected", "silent"  # reasons of lost connections (``wire.server``)
SIGNAL = "signal"  # reason of an agent that was asked to leave by one
# Phases of pilots that an earlier daemon requested.
_ADOPTED = {
    PilotState.REQUESTED: PilotPhase.SUBMITTED,
    PilotState.RUNNING: PilotPhase.RUNNING,
    PilotState.CANCELLED: PilotPhase.CANCELLED,
}


@dataclass(slots=True, kw_only=True)
class Pilot(Lifecycle):
    """A pilot that has not ended, with its state in memory."""

    CHANGES: ClassVar = PILOT_CHANGES
    record: PilotRecord
    phase: PilotPhase = PilotPhase.OPENED
    for_trainer: str = ""  # that it was requested for; "": unknown to this daemon
    is_written: bool = True  # the request is in the journal; updates come after it
    is_unanswered: bool = False  # the batch system did not say whether it has it
    farewell: str = ""  # why its agent left, in its own words
    submitted_s: float | None = None  # when the batch system accepted it (``steady``)
    start_s: float | None = None
    came_s: float | None = None  # when its agent first connected
    silent_s: float | None = None  # since when it is not connected any more
    unheard_s: float | None = None  # the same (``steady``), if it did not say why
    leave_by_s: float | None = None  # then it is cancelled with force (``steady``)
    view: PilotView | None = None  # as a decision saw it last ...
    view_facts: tuple[object, ...] = ()  # ... and what that followed from

    @property
    def is_leaving(self) -> bool:
        """Return whether its node is no offer to trainers."""
        return self.phase not in IN_USE

    @property
    def was_asked(self) -> bool:
        """Return whether we asked for its end; otherwise the batch system ends it, or its agent."""
        return self.phase in ASKED or any(change.phase in ASKED for change in self.history)

    @property
    def has_started(self) -> bool:
        """Return whether it has had its node, as a look or its agent told."""
        return self.came_s is not None or self.start_s is not None

    @property
    def awaits_agent(self) -> bool:
        """Return whether its agent has yet to connect, and may."""
        return self.came_s is None and self.record.state.is_active and not self.is_leaving

    @property
    def is_given_back(self) -> bool:
        """Return whether we asked for its end for an ordinary job."""
        return any(change.phase == PilotPhase.GIVEN_BACK for change in self.history)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unexplained:
    """A pilot whose end the batch system is to explain."""

    job_id: str
    is_mute: bool
    is_given_back: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedPilot:
    """How a pilot ended, as the batch system says."""

    pilot_id: str
    is_mute: bool  # its agent left without a word
    is_given_back: bool  # we had asked for its end, for an ordinary job
    how: PilotObservation


class PilotJournal(Protocol):
    """The part of a journal that a book uses (``bftrainer.journal.journal.Journal``)."""

    def pilots(self, *, active_only: bool = False) -> Sequence[PilotRecord]:
        """Return all pilots, or those that may still have a job, oldest first."""

    def append(self, kind: str, payload: object, *, pilots: Sequence[PilotRecord] = ()) -> object:
        """Write what has to be known before anything else is done (blocking, any thread)."""

    def note(self, kind: str, payload: object, *, pilots: Sequence[PilotRecord] = ()) -> object:
        """Write what has happened, as soon as possible."""


class PilotBook:
    """All pilots of ours that may still exist."""

    def __init__(
        self,
        journal: PilotJournal,
        system: BatchSystem,
        owner: str,
        clock: Callable[[], float],
        steady: Callable[[], float] | None = None,  # monotonic; None: ``clock``
        *,
        as_submitter: bool = False,  # a pilot runs as the user of the trainer that it is for
    ) -> None:
        self._journal = journal
        self.system = system
        self._owner, self.as_submitter = owner, as_submitter
        self._clock, self._steady = clock, steady or clock
        self.pilots: dict[str, Pilot] = {}
        for record in journal.pilots(active_only=True):
            pilot = Pilot(record=record, phase=_ADOPTED[record.state], submitted_s=-math.inf)
            if record.state is PilotState.CANCELLED:
                pilot.leave_by_s = -math.inf
            pilot.begins(clock(), "of an earlier daemon")
            self.pilots[record.pilot_id] = pilot
        self._unexplained: dict[str, _Unexplained] = {}  # ended pilots to be asked about
        self._uncancelled = SaidOnce()
        self.unreachable_s = 0.0  # how long an agent may be unheard before its pilot is cancelled
        self.on_absent: Callable[[PilotRecord], None] = lambda _record: None  # it had no job
        self.on_came: Callable[[Pilot], None] = lambda _pilot: None
        self.on_ended: Callable[[Pilot], None] = lambda _pilot: None
        self.on_explained: Callable[[str, PilotObservation], None] = lambda _pilot_id, _how: None
        self.give_backs = 0
        self.preemptions = 0

    def by_node(self) -> dict[str, Pilot]:
        """Return the pilot on, or requested for, each node."""
        return {p.record.node: p for p in self.pilots.values()}

    def user_of(self, pilot_id: str) -> str:
        """Return whose trainers a pilot serves; "": those of all, as the daemon's user."""
        pilot = self.pilots.get(pilot_id)
        owner = self._owner
        if pilot is not None:
            # Pilots of a daemon with another policy go on, but not for users whose they are not.
            if pilot.record.user:
                return pilot.record.user
            owner = pilot.record.owner or UNREADABLE
        if not self.as_submitter:
            return ""
        return owner

    def leaving(self) -> set[str]:
        """Return the pilots that were asked to leave or are doing so."""
        return {pilot_id for pilot_id, pilot in self.pilots.items() if pilot.is_leaving}

    @property
    def n_silent(self) -> int:
        """Number of pilots whose agents are lost without a word."""
        return sum(pilot.unheard_s is not None for pilot in self.pilots.values())

    @property
    def awaits_end(self) -> bool:
        """Return whether one was asked to leave that had not started: only looks show its end."""
        return any(pilot.was_asked and not pilot.has_started for pilot in self.pilots.values())

    def views(self, held: Iterable[str]) -> tuple[PilotView, ...]:
        """Return the pilots for a decision; ``held``: those with a connected agent."""
        connected, views = set(held), list[PilotView]()
        for pilot_id, pilot in sorted(self.pilots.items()):
            views.append(self._view(pilot, is_held=pilot_id in connected))
        return tuple(views)

    def _view(self, pilot: Pilot, *, is_held: bool) -> PilotView:
        """Return a pilot as decisions see it: the same object as before, unless it has changed."""
        record, is_silent = pilot.record, pilot.unheard_s is not None
        facts = (record, pilot.phase, pilot.start_s, is_silent, is_held)
        if pilot.view is not None and pilot.view_facts == facts:
            return pilot.view
        end_s = None
        if pilot.start_s is not None:
            end_s = pilot.start_s + record.time_limit_s
        pilot.view_facts = facts
        pilot.view = PilotView(
            pilot_id=record.pilot_id,
            node=record.node,
            requested_s=record.requested_s,
            is_held=is_held,
            is_leaving=pilot.is_leaving,
            end_s=end_s,
            user=self.user_of(record.pilot_id),
            is_silent=is_silent,
            part=record.part,
        )
        return pilot.view

    def open(self, pilot_id: str, claim: Claim, public_key: str, user: str = "") -> Pilot:
        """Add a pilot about to be requested; ``write_down`` comes before the request."""
        record = PilotRecord(
            pilot_id=pilot_id,
            node=claim.node,
            job_id=None,
            public_key=public_key,
            requested_s=self._clock(),
            time_limit_s=claim.time_limit_s,
            owner=self._owner,
            user=user,
            part=claim.part,
        )
        pilot = Pilot(record=record, for_trainer=claim.for_trainer, is_written=False)
        pilot.begins(record.requested_s)
        self.pilots[pilot_id] = pilot
        return pilot

    def write_down(self, records: Sequence[PilotRecord]) -> None:
        """Journal requests, all or none (blocking, any thread)."""
        pilot_ids = [record.pilot_id for record in records]
        self._journal.append("pilot-requested", {"pilot_ids": pilot_ids}, pilots=records)

    def launched(self, pilot: Pilot, job_id: str) -> None:
        """Record that the batch system has accepted it."""
        pilot.submitted_s = self._steady()
        pilot.becomes(PilotPhase.SUBMITTED, self._clock(), f"job {job_id}")
        self._update(pilot, job_id=job_id)

    def unanswered(self, pilot: Pilot, why: str) -> None:
        """Record that the batch system may have it; ``observe`` finds it, or ends it."""
        pilot.is_unanswered = True
        pilot.submitted_s = self._steady() + UNANSWERED_S
        pilot.becomes(PilotPhase.SUBMITTED, self._clock(), why)
        LOG.info("pilot %s on %s: %s", pilot.record.pilot_id, pilot.record.node, why)

    def retire(self, limit_s: float) -> bool:
        """Offer no node to trainers any more; within the limit they should have left.

        Returns:
            Whether there was one.
        """
        now_s, leave_by_s = self._clock(), self._steady() + limit_s + FORCE_AFTER_S
        has_retired = False
        for pilot in self.pilots.values():
            if pilot.becomes(PilotPhase.RETIRED, now_s):
                pilot.leave_by_s, has_retired = leave_by_s, True
        return has_retired

    def keep_retired(self) -> None:
        """Offer the nodes of retired pilots again that were not asked to leave."""
        now_s = self._clock()
        for pilot in self.pilots.values():
            if pilot.phase is PilotPhase.RETIRED:
                pilot.becomes(PilotPhase.SUBMITTED, now_s, "the drain was called off")
                pilot.leave_by_s = None
                if pilot.unheard_s is not None:
                    pilot.becomes(PilotPhase.SILENT, now_s)
                elif pilot.came_s is not None:
                    pilot.becomes(PilotPhase.RUNNING, now_s)

    def release(self, releases: Sequence[Release], told: Collection[str] = ()) -> list[str]:
        """Mark pilots as asked to leave; return the jobs to cancel, of those not told."""
        to_cancel, pilots = list[str](), list[Pilot]()
        for release in releases:
            pilot, phase = self.pilots.get(release.pilot_id), PilotPhase.CANCELLED
            if release.for_job:
                phase = PilotPhase.GIVEN_BACK
            if pilot is None or not self._ask(pilot, phase, release.reason):
                continue
            self.give_backs += bool(release.for_job)
            pilots.append(pilot)
            if release.pilot_id not in told:
                to_cancel.append(release.pilot_id)
        self._note(pilots)
        return self.job_ids(to_cancel)

    def _ask(self, pilot: Pilot, phase: PilotPhase, why: str) -> bool:
        if not pilot.becomes(phase, self._clock(), why):
            return False  # it was asked before
        pilot.leave_by_s = self._steady() + FORCE_AFTER_S
        pilot.record = replace(pilot.record, state=PilotState.CANCELLED, reason=why)
        return True

    def job_ids(self, pilot_ids: Iterable[str]) -> list[str]:
        """Return the batch system's job ids of those that have one, and nobody else the same.

        The sbatch of a user says which job it is, and so does the user: it could be another's.
        """
        counts, job_ids = Counter[str | None](), list[str]()
        for pilot in self.pilots.values():
            counts[pilot.record.job_id] += 1
        for pilot_id in sorted(pilot_ids):
            if pilot_id in self.pilots:
                job_id = self.pilots[pilot_id].record.job_id
                if job_id is not None and counts[job_id] == 1:
                    job_ids.append(job_id)
        return job_ids

    def by_user(self, job_ids: Iterable[str]) -> dict[str, list[str]]:
        """Return jobs by the users of their pilots; "": the daemon's own, and strays."""
        users = {p.record.job_id: p.record.user for p in self.pilots.values()}
        jobs: dict[str, list[str]] = {}
        for job_id in job_ids:
            jobs.setdefault(users.get(job_id, ""), []).append(job_id)
        return jobs

    def cancel(self, job_ids: Sequence[str], *, force: bool = False) -> None:
        """Cancel jobs (blocking); ``overdue`` retries failures."""
        if not job_ids:
            return
        try:
            self.system.cancel_pilots(job_ids, force=force)
            self._uncancelled.is_over()
        except BatchSystemError as problem:
            if self._uncancelled.new([problem.cause]):
                LOG.warning("cancelling pilots %s failed: %s", ",".join(job_ids), problem)

    def overdue(self) -> list[str]:
        """Return job ids that should be gone by now, to be cancelled with force (again)."""
        now_s = self._steady()
        late = self._give_up(now_s)
        for pilot in self.pilots.values():
            if pilot.leave_by_s is not None and now_s > pilot.leave_by_s:
                pilot.leave_by_s = now_s + FORCE_AFTER_S
                late.append(pilot.record.pilot_id)
        if not late:
            return []
        return self.job_ids(late)

    def unheeded(self) -> list[str]:
        """Return jobs of pilots that were asked to leave, and of whose end nothing tells.

        Their agents are not heard, or never were, and no look has shown the end.
        """
        pilot_ids = []
        for pilot_id, pilot in self.pilots.items():
            is_unheard = pilot.silent_s is None or pilot.unheard_s is not None
            if pilot.was_asked and is_unheard:
                pilot_ids.append(pilot_id)
        return self.job_ids(pilot_ids)

    def _give_up(self, now_s: float) -> list[str]:
        given_up = []
        for pilot_id, pilot in self.pilots.items():
            if pilot.is_leaving or pilot.unheard_s is None:
                continue
            silent_s = now_s - pilot.unheard_s
            why = f"Its agent was not heard for {silent_s:.0f} s (unreachable_s)."
            if silent_s > self.unreachable_s and self._ask(pilot, PilotPhase.CANCELLED, why):
                given_up.append(pilot)
                LOG.warning("pilot %s on %s is cancelled: %s", pilot_id, pilot.record.node, why)
        self._note(given_up)
        return [pilot.record.pilot_id for pilot in given_up]

    def agent_ends(self, pilot_id: str, grace_s: float) -> None:
        """Record that the batch system preempts the pilot and leaves it ``grace_s``."""
        pilot = self.pilots.get(pilot_id)
        if pilot is None or not pilot.becomes(PilotPhase.PREEMPTED, self._clock(), SIGNAL):
            return
        pilot.leave_by_s = self._steady() + grace_s + FORCE_AFTER_S
        pilot.farewell = SIGNAL
        self.preemptions += 1
        LOG.info("pilot %s is preempted in %.0f s", pilot_id, grace_s)

    def agent_left(self, pilot_id: str, reason: str) -> None:
        """Record that the agent announced its exit or lost its connection.

        One that did not say that it leaves may come back for ``unreachable_s``.
        """
        pilot = self.pilots.get(pilot_id)
        if pilot is None:
            return
        pilot.silent_s = self._clock()
        is_unheard = reason in (GONE, SILENT)
        if is_unheard and not pilot.farewell:  # else its connection ends after its Leaving
            pilot.unheard_s = self._steady()
        if pilot.is_leaving:
            return
        pilot.farewell = reason
        if is_unheard:
            pilot.becomes(PilotPhase.SILENT, pilot.silent_s, reason)
        else:
            phase = PilotPhase.LEFT
            if reason == SIGNAL:
                phase = PilotPhase.PREEMPTED
                self.preemptions += 1
            pilot.becomes(phase, pilot.silent_s, reason)
            pilot.leave_by_s = self._steady() + FORCE_AFTER_S
        LOG.info("agent of pilot %s left: %s", pilot_id, reason)

    def agent_came(self, pilot_id: str) -> str:
        """Record that the agent sent Hello; return why it has to go, "": it may stay."""
        pilot = self.pilots.get(pilot_id)
        if pilot is None:
            return "Its pilot is not known."
        pilot.silent_s = pilot.unheard_s = None
        if pilot.came_s is None:
            pilot.came_s = self._clock()
            self.on_came(pilot)
        if pilot.becomes(PilotPhase.RUNNING, self._clock()):
            pilot.farewell = ""
        if pilot.record.state is PilotState.REQUESTED:
            self._update(pilot, state=PilotState.RUNNING)
        if pilot.phase in ASKED | {PilotPhase.COMPLETING}:
            return pilot.record.reason or "Its job is ending."
        return ""

    def recognised(self, snapshot: Snapshot) -> Snapshot:
        """Return it without jobs of other users that only have the name of a pilot of ours."""
        if not self.as_submitter or snapshot.jobs is None:
            return snapshot
        jobs = list(snapshot.jobs)
        for place, job in enumerate(jobs):
            if self._is_forged(job):
                jobs[place] = replace(job, pilot_id=f"{job.pilot_id} of {job.job_id}")
        return replace(snapshot, jobs=tuple(jobs))

    def _is_forged(self, job: Job) -> bool:
        if job.pilot_id is None or job.pilot_id not in self.pilots:
            return False
        pilot = self.pilots[job.pilot_id]
        is_same = pilot.record.job_id in (None, job.job_id)
        return not is_same or job.user != self.user_of(pilot.record.pilot_id)

    def observe(self, snapshot: Snapshot, looked_s: float) -> list[str]:
        """Compare with the queue, if it is known; return the pilots that have ended.

        Those submitted after ``looked_s`` (``steady``) may be missing in the snapshot although they
        exist.
        """
        if snapshot.jobs is None:
            return []
        ours = {j.pilot_id: j for j in snapshot.jobs if j.pilot_id is not None}
        ended = []
        for pilot_id, pilot in list(self.pilots.items()):
            job = ours.get(pilot_id)
            if job is not None:
                self._observe_present(pilot, job)
            elif pilot.submitted_s is not None and pilot.submitted_s < looked_s:
                had_job = pilot.record.job_id is not None
                why = "Its job is no longer in the queue."
                if not had_job:
                    why = "It has no job."
                self.end(pilot_id, pilot.record.reason or why)
                ended.append(pilot_id)
                if not had_job:
                    self.on_absent(pilot.record)
        return ended

    def _observe_present(self, pilot: Pilot, job: Job) -> None:
        if pilot.record.job_id is None:  # the daemon died while submitting it
            pilot.becomes(PilotPhase.SUBMITTED, self._clock(), f"job {job.job_id}")
            self._update(pilot, job_id=job.job_id)
            pilot.submitted_s = self._steady()  # later looks show it as long as it exists
            if pilot.was_asked:  # before anybody knew that it has a job
                pilot.leave_by_s = -math.inf
        if job.state is JobState.RUNNING and pilot.start_s is None:
            pilot.start_s = job.start_s
            limit_s = job.time_limit_s or 0.0
            if 0.0 < limit_s < math.inf and limit_s != pilot.record.time_limit_s:
                self._update(pilot, time_limit_s=limit_s)  # rounded by the batch system
        if job.state is JobState.COMPLETING:
            pilot.becomes(PilotPhase.COMPLETING, self._clock())

    def end(self, pilot_id: str, reason: str) -> None:
        """Journal the end of a pilot, and drop it."""
        pilot = self.pilots.pop(pilot_id, None)
        if pilot is None:
            return
        now_s = self._clock()
        pilot.becomes(PilotPhase.ENDED, now_s, reason)
        record = replace(pilot.record, state=PilotState.ENDED, ended_s=now_s, reason=reason)
        pilot.record = record
        self._journal.note("pilot-ended", {"pilot_id": pilot_id}, pilots=[record])
        self.on_ended(pilot)
        is_explained = pilot.was_asked or pilot.farewell not in ("", GONE, SIGNAL)
        is_handed_over = pilot.is_given_back and pilot.came_s is not None
        if record.job_id is not None and (not is_explained or is_handed_over):
            self._unexplained[pilot_id] = _Unexplained(
                job_id=record.job_id,
                is_mute=pilot.farewell == GONE,
                is_given_back=is_handed_over,
            )

    @property
    def has_unexplained(self) -> bool:
        """Return whether a pilot has ended that neither the daemon nor its agent ended.

        Or that was given back: the batch system may have preempted it just then.
        """
        return bool(self._unexplained)

    def explanations(self) -> list[EndedPilot]:
        """Query once how those pilots ended (blocking, any thread)."""
        unexplained, self._unexplained = self._unexplained, {}
        states = self.system.pilot_states([pilot.job_id for pilot in unexplained.values()])
        ended: list[EndedPilot] = []
        for pilot_id, pilot in unexplained.items():
            how = states[pilot.job_id]
            ended.append(
                EndedPilot(
                    pilot_id=pilot_id,
                    is_mute=pilot.is_mute,
                    is_given_back=pilot.is_given_back,
                    how=how,
                )
            )
        return ended

    def _update(self, pilot: Pilot, **changes: Any) -> None:
        pilot.record = replace(pilot.record, **changes)
        self._note([pilot])

    def _note(self, pilots: Sequence[Pilot]) -> None:
        records = [pilot.record for pilot in pilots if pilot.is_written]
        if records:
            pilot_ids = [record.pilot_id for record in records]
            self._journal.note("pilot-updated", {"pilot_ids": pilot_ids}, pilots=records)
