"""Refused pilot requests: why, whose, and the pause before the next request.

A refusal concerns those who would be charged, a user and an account, or all. Their trainers keep
the nodes they have; after the pause, which doubles, one request is tried. A trainer whose pilots
are in vain (``actuate.vain_pilots``) pauses in the same way until it makes a step; those of a user
whose pilots end before their agents speak, until one does.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.fleet.pilots.pilots import Pilot, PilotBook
from bftrainer.fleet.pilots.reasons import refusal
from bftrainer.fleet.pilots.vain import MutePilots, VainPilots
from bftrainer.journal.records import PilotRecord, PilotState
from bftrainer.model.cluster import EndedBy
from bftrainer.model.decision import Claim, Memory
from bftrainer.model.trainer import TrainerRecord
from bftrainer.site.submit.client import HELPER_SAYS

LOG = logging.getLogger("bftrainer.pilots")
MAX_PAUSE_S: Final = 300.0
MOST: Final = 1000  # who is remembered
Whom = tuple[str, str]  # user, "": the daemon's; account, "": the default one
ALL: Final[Whom] = ("*", "*")
DAEMON: Final[Whom] = ("", "")
TRAINER: Final = "*trainer"  # and its id: one whose pilots are in vain
MUTE: Final = "*mute"  # and a user: whose pilots end before their agents speak
FIRST_ROUND: Final = 4  # of these two: the first pause is 32 s


@dataclass(slots=True)
class _Pause:
    why: str = ""
    rounds: int = 0
    until_s: float = 0.0

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until_s


@dataclass(slots=True, kw_only=True)
class PilotRefusals:
    """Consecutive refusals, by whom they concern."""

    as_submitter: bool = False  # pilots run as the users of trainers
    closed: str = ""  # why the batch system takes no pilots at all, by the last poll
    _pauses: dict[Whom, _Pause] = field(default_factory=dict)
    _vain: VainPilots = field(default_factory=VainPilots)
    _mute: defaultdict[str, MutePilots] = field(default_factory=lambda: defaultdict(MutePilots))
    _unheard: dict[str, PilotRecord] = field(default_factory=dict)  # ended, how is being asked
    where: Callable[[], str] = lambda: ""  # to look if agents do not speak

    @property
    def why(self) -> str:
        """Why pilots are refused, whosever they are, or the daemon's own; "": they are not."""
        return self._why_of_all() or self._why((MUTE, "")) or self._why(DAEMON)

    def may_claim(self, records: Iterable[TrainerRecord] = ()) -> bool:
        """Whether pilots of anybody, or for one of these trainers, may be requested."""
        if self.closed or not self._pause(ALL).is_over:
            return False
        concerned = [self._pause(self._key(record)).is_over for record in records]
        return any(concerned) or not concerned

    def polled(self, closed: str) -> None:
        """Learn from a poll whether the batch system takes pilots; logged when it changes."""
        if closed != self.closed:
            LOG.warning("%s", closed or "The batch system takes pilots again.")
        self.closed = closed

    def whom(self, record: TrainerRecord | None) -> Whom:
        """Return who is charged for the pilots of a trainer."""
        if record is None:
            return DAEMON
        return (record.spec.user if self.as_submitter else "", record.spec.account)

    def why_of(self, record: TrainerRecord) -> str:
        """Say why pilots of this trainer are refused; "": they are not."""
        return self._why_of_all() or self._why(self._key(record))

    @property
    def n_mute(self) -> int:
        """Number of pilots in a row that ended before their agents spoke, of the worst user."""
        return max((row.count for row in self._mute.values()), default=0)

    @property
    def n_vain(self) -> int:
        """Number of trainers whose pilots are in vain."""
        return sum(whom[0] == TRAINER for whom in self._pauses)

    def allowed(
        self, records: Sequence[TrainerRecord], memory: Memory, pilot_nodes: Collection[str]
    ) -> tuple[Sequence[TrainerRecord], Memory]:
        """Return trainers and memory as a decision may see them: the refused do not grow.

        After the pause they may have one node more, or start last, so that a trial that fails
        takes nothing from others.

        Args:
            records: trainers that may have nodes.
            memory: of the decision before.
            pilot_nodes: nodes with a pilot, or for which one was requested.
        """
        refused = {r.trainer_id: self._pause(self._key(r)) for r in records}
        refused = {trainer_id: pause for trainer_id, pause in refused.items() if pause.why}
        if not refused or not self.may_claim(records):  # then there are no others to choose from
            return records, memory
        plan = memory.assignment
        plan = {n: t for n, t in plan.items() if t not in refused or n in pilot_nodes}
        has = Counter(plan.values())
        first, last = list[TrainerRecord](), list[TrainerRecord]()
        for record in records:
            spec, size, pause = record.spec, has[record.trainer_id], refused.get(record.trainer_id)
            is_trial = pause is not None and pause.is_over
            most = max(spec.n_min, size + is_trial)
            if pause is None:
                first.append(record)
            elif size >= spec.n_min or is_trial:
                capped = replace(record, spec=replace(spec, n_max=min(spec.n_max, most)))
                (first if size >= spec.n_min else last).append(capped)
        return [*first, *last], replace(memory, assignment=plan)

    def tried(self, claims: Sequence[Claim], trainers: Mapping[str, TrainerRecord]) -> list[Claim]:
        """Return the claims to make: none in a pause, and then one for each who was refused."""
        seen: set[Whom] = set()
        chosen = []
        for claim in claims:
            whom = self._key(trainers.get(claim.for_trainer))
            is_trial = bool(self._why(whom) or self._why(ALL))
            if self._pause(whom).is_over and not (is_trial and whom in seen):
                chosen.append(claim)
            seen.add(whom)
        return chosen

    def follow(self, pilots: PilotBook, trainers: Mapping[str, TrainerRecord]) -> None:
        """Learn from now on how pilots end and whether their agents speak."""
        pilots.on_ended = lambda pilot: self.pilot_ended(pilot, trainers)
        pilots.on_came, pilots.on_explained = self.agent_spoke, self.pilot_explained

    def agent_spoke(self, pilot: Pilot) -> None:
        """Learn that the agent of a pilot has connected."""
        self._mute.pop(pilot.record.user, None)
        if self._pauses.pop((MUTE, pilot.record.user), None) is not None:
            LOG.info("agents of pilots speak again")

    def pilot_explained(self, pilot_id: str, how: PilotObservation) -> None:
        """Learn what the batch system says of a pilot that ended and that nobody had asked to."""
        done = self._unheard.pop(pilot_id, None)
        if done is not None:
            self._ended_mute(done, how.ended_by, how.reason)

    def _ended_mute(self, done: PilotRecord, by: EndedBy | None, how: str = "") -> None:
        why = self._mute[done.user].ended(done, by, how, self.where())
        if why:
            self._note((MUTE, done.user), why, why)

    def pilot_ended(self, pilot: Pilot, trainers: Mapping[str, TrainerRecord]) -> None:
        """Learn how a pilot ended; its trainer pauses if it has used up many without a step."""
        record, done = trainers.get(pilot.for_trainer), pilot.record
        if done.job_id is None:  # the batch system refused it
            return
        if pilot.came_s is None and pilot.was_asked:
            self._ended_mute(done, None)
        elif pilot.came_s is None and done.state is not PilotState.RUNNING:
            self._unheard[done.pilot_id] = done
        if record is None:
            return
        how = pilot.farewell if pilot.farewell and not pilot.was_asked else done.reason
        why = self._vain.ended(record, done.pilot_id, done.node, done.requested_s, how)
        if why:
            self._note((TRAINER, record.trainer_id), why, why)

    def refused(self, words: str, record: TrainerRecord | None = None) -> None:
        """Record a refusal in the batch system's words, or another trouble that concerns all."""
        whom, why, is_for_all = self.whom(record), words, True
        if record is not None:
            user = whom[0] or "the daemon's user"
            said = refusal(words, user=user, account=whom[1])
            # What sbatch says as a user he can write himself.
            is_ours = not self.as_submitter or words.startswith(HELPER_SAYS)
            why, is_for_all = said.why, said.is_for_all and is_ours
        self._note(ALL if is_for_all else whom, why, words)

    def _note(self, whom: Whom, why: str, words: str) -> None:
        while len(self._pauses) >= MOST and whom not in self._pauses:
            del self._pauses[next(iter(self._pauses))]
        is_trainer, is_vain = whom[0] == TRAINER, whom[0] in (TRAINER, MUTE)
        pause = self._pauses.setdefault(whom, _Pause(rounds=FIRST_ROUND if is_vain else 0))
        if pause.why != why:
            name = f"trainer {whom[1]}: " if is_trainer else ""
            LOG.warning("%s%s%s", name, why, "" if words in why else f" ({words})")
        pause.why = why
        if pause.is_over:  # a round of requests counts once
            pause.rounds += 1
            pause.until_s = time.monotonic() + min(MAX_PAUSE_S, 2.0 ** min(16, pause.rounds))

    def accepted(self, record: TrainerRecord | None = None) -> None:
        """Record an accepted request."""
        for whom in {ALL, self.whom(record)}:
            if self._pauses.pop(whom, None) is not None:
                LOG.info("pilots are accepted again%s", whom[0].strip("*") and f" of {whom[0]}")

    def _why_of_all(self) -> str:
        return self.closed or self._why(ALL)

    def _key(self, record: TrainerRecord | None) -> Whom:
        """Return whose pause counts for a trainer: its own, or that of who is charged."""
        if record is not None and (own := (TRAINER, record.trainer_id)) in self._pauses:
            if not (record.state.is_final or self._vain.has_stepped(record)):
                return own
            del self._pauses[own]
        whom = self.whom(record)
        mute = (MUTE, whom[0])
        return mute if mute in self._pauses else whom

    def _pause(self, whom: Whom) -> _Pause:
        return self._pauses.get(whom) or _Pause()

    def _why(self, whom: Whom) -> str:
        return self._pause(whom).why
