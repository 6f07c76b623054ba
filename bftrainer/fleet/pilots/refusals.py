"""Refused pilots: those concerned, and the pause before the next request.

A refusal concerns those who would be charged, a user and an account, or all. Their trainers keep
the nodes they have; after the pause, which doubles, one request is tried. A trainer whose pilots
are in vain (``vain``) pauses in the same way until it makes a step; the trainers of a user whose
pilots end before their agents have connected pause until an agent connects.
"""

from __future__ import annotations

import enum
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.fleet.pilots.pilots import Pilot, PilotBook
from bftrainer.fleet.pilots.refusal_words import refusal
from bftrainer.fleet.pilots.vain import MutePilots, VainPilots
from bftrainer.journal.projection import PilotRecord, PilotState
from bftrainer.model.cluster import EndedBy
from bftrainer.model.decision import Claim, Memory
from bftrainer.model.trainer import TrainerRecord
from bftrainer.site.submit.client import HELPER_SAYS

LOG = logging.getLogger("bftrainer.pilots")
MAX_PAUSE_S: Final = 300.0
MOST_PAUSES: Final = 1000  # that are remembered
PATIENT_ROUND: Final = 4  # the first pause is 32 s
Trainers = Mapping[str, TrainerRecord]  # by trainer id


class Concern(enum.Enum):
    """Whose pilots pause."""

    ALL = "all"
    PAYER = "payer"  # who is charged, a user and an account
    TRAINER = "trainer"  # one whose pilots are in vain
    MUTE = "mute"  # a user whose pilots end before their agents speak

    @property
    def first_round(self) -> int:
        """The round of requests that the pauses, which double with each, begin at."""
        if self in (Concern.TRAINER, Concern.MUTE):
            return PATIENT_ROUND
        return 0


class Concerned(NamedTuple):
    """Those who pause."""

    concern: Concern
    user: str = ""  # "": the daemon's
    account: str = ""  # "": the default one
    trainer_id: str = ""


@dataclass(slots=True)
class _Pause:
    why: str = ""
    rounds: int = 0
    until_s: float = -math.inf


@dataclass(slots=True, kw_only=True)
class PilotRefusals:
    """Consecutive refusals, by whom they concern."""

    as_submitter: bool = False  # pilots run as the users of trainers
    closed: str = ""  # why the batch system takes no pilots at all, by the last poll
    _pauses: dict[Concerned, _Pause] = field(default_factory=dict)
    _vain: VainPilots = field(default_factory=VainPilots)
    _mute: defaultdict[str, MutePilots] = field(default_factory=lambda: defaultdict(MutePilots))
    _unheard: dict[str, PilotRecord] = field(default_factory=dict)  # ended, how is being asked
    where: Callable[[], str] = lambda: ""  # to look if agents do not speak
    clock: Callable[[], float] = time.monotonic  # in seconds
    log: logging.Logger = LOG

    @property
    def why(self) -> str:
        """The reason for refusing all pilots, those without agents or the daemon's; "" if none."""
        return (
            self._why_of_all()
            or self._why(Concerned(Concern.MUTE))
            or self._why(Concerned(Concern.PAYER))
        )

    def may_claim(self, records: Iterable[TrainerRecord] = ()) -> bool:
        """Return whether pilots of anybody, or for one of these trainers, may be requested."""
        if self.closed or not self._is_over(Concerned(Concern.ALL)):
            return False
        if not self._pauses:
            return True
        are_over = [self._is_over(self._key(record)) for record in records]
        return any(are_over) or not are_over

    def polled(self, closed: str) -> None:
        """Learn from a poll whether the batch system takes pilots; logged when it changes."""
        if closed != self.closed:
            self.log.warning("%s", closed or "The batch system takes pilots again.")
        self.closed = closed

    def payer(self, record: TrainerRecord | None) -> Concerned:
        """Return who is charged for the pilots of a trainer."""
        if record is None:
            return Concerned(Concern.PAYER)
        if not self.as_submitter:
            return Concerned(Concern.PAYER, account=record.spec.account)
        return Concerned(Concern.PAYER, record.spec.user, record.spec.account)

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
        return sum(key.concern is Concern.TRAINER for key in self._pauses)

    def allowed(
        self, records: Sequence[TrainerRecord], memory: Memory, pilot_nodes: Collection[str]
    ) -> tuple[Sequence[TrainerRecord], Memory]:
        """Return trainers and memory as a decision may see them: the refused do not grow.

        After the pause they may have one node more, or start last, so that a trial that fails takes
        nothing from others. ``pilot_nodes`` have a pilot, or one was requested.
        """
        if not self._pauses:
            return records, memory
        pauses: dict[str, _Pause] = {}
        for record in records:
            pause = self._pause(self._key(record))
            if pause.why:
                pauses[record.trainer_id] = pause
        if not pauses or not self.may_claim(records):  # then there are no others to choose from
            return records, memory
        plan = memory.assignment
        plan = {n: t for n, t in plan.items() if t not in pauses or n in pilot_nodes}
        sizes = Counter(plan.values())
        first, last = list[TrainerRecord](), list[TrainerRecord]()
        for record in records:
            if record.trainer_id not in pauses:
                first.append(record)
                continue
            spec, size = record.spec, sizes[record.trainer_id]
            is_trial = self.clock() >= pauses[record.trainer_id].until_s
            n_max = min(spec.n_max, max(spec.n_min, size + is_trial))
            capped = replace(record, spec=replace(spec, n_max=n_max))
            if size >= spec.n_min:
                first.append(capped)
            elif is_trial:
                last.append(capped)
        return [*first, *last], replace(memory, assignment=plan)

    def tried(self, claims: Sequence[Claim], trainers: Trainers) -> list[Claim]:
        """Return the claims to make: none in a pause, and then one for each who was refused."""
        keys, trials = set[Concerned](), list[Claim]()
        for claim in claims:
            key = self._key(trainers.get(claim.for_trainer))
            is_trial = bool(self._why(key) or self._why(Concerned(Concern.ALL)))
            is_second = is_trial and key in keys
            if self._is_over(key) and not is_second:
                trials.append(claim)
            keys.add(key)
        return trials

    def follow(self, pilots: PilotBook, trainers: Callable[[], Trainers]) -> None:
        """Learn from now on how pilots end and whether their agents speak."""
        pilots.on_ended = lambda pilot: self.pilot_ended(pilot, trainers())
        pilots.on_came = lambda pilot: self.agent_spoke(pilot, trainers().get(pilot.for_trainer))
        pilots.on_explained = self.pilot_explained

    def agent_spoke(self, pilot: Pilot, record: TrainerRecord | None = None) -> None:
        """Learn that the agent of a pilot, which was for this trainer, has connected."""
        if pilot.is_unanswered:
            self.accepted(record)
        self._mute.pop(pilot.record.user, None)
        if self._pauses.pop(Concerned(Concern.MUTE, pilot.record.user), None) is not None:
            self.log.info("agents of pilots speak again")

    def pilot_explained(self, pilot_id: str, how: PilotObservation) -> None:
        """Learn what the batch system says of a pilot that ended and that nobody had asked to."""
        pilot = self._unheard.pop(pilot_id, None)
        if pilot is not None:
            self._ended_mute(pilot, how.ended_by, how.reason)

    def _ended_mute(self, pilot: PilotRecord, ended_by: EndedBy | None, how: str = "") -> None:
        why = self._mute[pilot.user].ended(pilot, ended_by, how, self.where())
        if why:
            self._note(Concerned(Concern.MUTE, pilot.user), why, why)

    def pilot_ended(self, pilot: Pilot, trainers: Trainers) -> None:
        """Learn how a pilot ended; its trainer pauses if it has used up many without a step."""
        record, ended = trainers.get(pilot.for_trainer), pilot.record
        if ended.job_id is None:  # the batch system refused it
            return
        if pilot.came_s is None and pilot.was_asked:
            self._ended_mute(ended, None)
        elif pilot.came_s is None and ended.state is not PilotState.RUNNING:
            self._unheard[ended.pilot_id] = ended
        if record is None:
            return
        if pilot.was_asked and not pilot.has_started:
            return  # it never had its node, which says nothing of the trainer
        how = ended.reason
        if pilot.farewell and not pilot.was_asked:
            how = pilot.farewell
        why = self._vain.ended(record, ended.pilot_id, ended.node, ended.requested_s, how)
        if why:
            self._note(Concerned(Concern.TRAINER, trainer_id=record.trainer_id), why, why)

    def refused(self, words: str, record: TrainerRecord | None = None) -> None:
        """Record a refusal in the batch system's words, or another trouble that concerns all."""
        payer, why = self.payer(record), words
        key = Concerned(Concern.ALL)
        if record is not None:
            user = payer.user or "the daemon's user"
            meaning = refusal(words, user=user, account=payer.account)
            why = meaning.why
            # Users can write themselves what sbatch, run as them, says.
            is_ours = not self.as_submitter or words.startswith(HELPER_SAYS)
            if not (meaning.is_for_all and is_ours):
                key = payer
        self._note(key, why, words)

    def _note(self, key: Concerned, why: str, words: str) -> None:
        while len(self._pauses) >= MOST_PAUSES and key not in self._pauses:
            del self._pauses[next(iter(self._pauses))]
        if key not in self._pauses:
            self._pauses[key] = _Pause(rounds=key.concern.first_round)
        pause = self._pauses[key]
        if pause.why != why:
            self.log.warning("%s", _sentence_of(key, why, words))
        pause.why = why
        now_s = self.clock()
        if now_s >= pause.until_s:  # a round of requests counts once
            pause.rounds += 1
            pause.until_s = now_s + min(MAX_PAUSE_S, 2.0 ** min(16, pause.rounds))

    def accepted(self, record: TrainerRecord | None = None) -> None:
        """Record an accepted request."""
        for key in (Concerned(Concern.ALL), self.payer(record)):
            if self._pauses.pop(key, None) is not None:
                self.log.info("pilots are accepted again%s", key.user and f" of {key.user}")

    def _why_of_all(self) -> str:
        return self.closed or self._why(Concerned(Concern.ALL))

    def _key(self, record: TrainerRecord | None) -> Concerned:
        """Return whose pause counts for a trainer: its own, or that of who is charged."""
        if record is not None:
            trainer = Concerned(Concern.TRAINER, trainer_id=record.trainer_id)
            if trainer in self._pauses:
                if not (record.state.is_final or self._vain.has_stepped(record)):
                    return trainer
                del self._pauses[trainer]
        payer = self.payer(record)
        mute = Concerned(Concern.MUTE, payer.user)
        if mute in self._pauses:
            return mute
        return payer

    def _pause(self, key: Concerned) -> _Pause:
        return self._pauses.get(key) or _Pause()

    def _is_over(self, key: Concerned) -> bool:
        return self.clock() >= self._pause(key).until_s

    def _why(self, key: Concerned) -> str:
        return self._pause(key).why


def _sentence_of(key: Concerned, why: str, words: str) -> str:
    """Return what to log of a refusal, with the batch system's words unless they are in it."""
    if words not in why:
        why = f"{why} ({words})"
    if key.trainer_id:
        return f"trainer {key.trainer_id}: {why}"
    return why
