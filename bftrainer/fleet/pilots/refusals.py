"""Refused pilots: the reason in plain words, those concerned, the pause before the next request.

Slurm's words are those of slurm_errno.c and of squeue's manual page ("JOB REASON CODES"), 22.05 to
25.05; LSF's those of bsub and bjobs. Words that are not known here are passed on.

A refusal concerns those who would be charged, a user and an account, or all. Their trainers keep
the nodes they have; after the pause, which doubles, one request is tried. A trainer whose pilots
are in vain (``vain``) pauses in the same way until it makes a step; the trainers of a user whose
pilots end before their agents have connected pause until an agent connects.
"""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.fleet.pilots.pilots import Pilot, PilotBook
from bftrainer.fleet.pilots.vain import MutePilots, VainPilots
from bftrainer.journal.projection import PilotRecord, PilotState
from bftrainer.model.cluster import EndedBy
from bftrainer.model.decision import Claim, Memory
from bftrainer.model.trainer import TrainerRecord
from bftrainer.site.submit.client import HELPER_SAYS

_LIMIT = re.compile(r"\b(QOS|Assoc)(?:iation)?([A-Z][A-Za-z]*)")
_OF_WHAT = (
    ("Submit", "submitted jobs"),
    ("Wall", "run time"),
    ("Jobs", "running jobs"),
    ("JobLimit", "running jobs"),
    ("Node", "nodes"),
    ("Cpu", "CPUs"),
    ("CPU", "CPUs"),
    ("Mem", "memory"),
    ("GRES", "GPUs"),
    ("Gres", "GPUs"),
)
_PER = (
    ("PerUser", " of one user"),
    ("PerAccount", " of one account"),
    ("PerJob", " of one job"),
    ("Grp", " of all its users together"),
)
_RAISE = "Ask an administrator to raise it, or wait until jobs of yours have ended."


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The reason for which pilots are refused."""

    why: str  # a sentence, and what to do, for the trainer's user
    is_for_all: bool  # whoever's pilots they are


# What the batch system says, what it means, what to do, whether that holds for everybody.
_REFUSED = (
    (
        r"BFT-1528",
        "{user} may have no pilots here",
        "Ask an administrator (submit-helper.json).",
        False,
    ),
    (
        r"BFT-1529",
        "the folder of pilots in the home of {user} cannot be used",
        "See that ~/.bftrainer is a directory of yours, and that only you can write to it.",
        False,
    ),
    (
        r"BFT-1527",
        "the submit helper does not accept the request for {user} with {account}",
        "Correct --account, or ask an administrator (journalctl -t bftrainer-submit-helper).",
        False,
    ),
    (  # sbatch tries again until we end it, so that the next row applies, too
        r"temporarily unable to accept job|[Pp]ending job threshold|MaxJobCount",
        "the queue of the whole cluster is full",
        "It goes on by itself when jobs have ended.",
        True,
    ),
    (
        r"It is not known whether",
        "it does not say in time whether it takes them",
        "A pilot that appears in the queue within a minute is used; else it is tried again.",
        False,
    ),
    (
        r"submit helper",
        "they cannot be submitted as their users",
        "Ask an administrator (systemctl status bftrainer-submit.socket).",
        True,
    ),
    (
        r"partition not available|[Qq]ueue has been closed|[Qq]ueue is closed",
        "the partition of pilots takes no jobs now (inactive, drained or closed)",
        "It goes on by itself when an administrator opens the partition.",
        True,
    ),
    (
        r"Invalid account",
        "{account} may not be used by {user} in the partition of pilots",
        "Name another one with --account, or ask an administrator for an association (sacctmgr).",
        False,
    ),
    (
        r"Invalid qos|InvalidQOS|QOSNotAllowed",
        "the QOS of pilots may not be used by {user} with {account}",
        "Ask an administrator to allow it (sacctmgr modify user ... set qos+=...).",
        False,
    ),
    (
        r"group not permitted|[Pp]ermission denied|cannot use the queue",
        "{user} may not submit jobs to the partition of pilots",
        "Ask an administrator (AllowGroups and AllowAccounts of the partition).",
        False,
    ),
    (
        r"time limit is invalid",
        "their time limit is longer than the partition, the account or the QOS allows",
        "Ask an administrator to lower pilot_time_limit_s in the policy.",
        False,
    ),
    (
        r"Invalid partition|No such queue",
        "there is no such partition or queue for pilots",
        "Ask an administrator to correct the policy (bftrainer doctor).",
        True,
    ),
    (
        r"accounting/QOS policy",
        "a limit of {account} or of the QOS of pilots is reached",
        _RAISE,
        False,
    ),
)
_WAITS = (
    (r"PartitionDown|PartitionInactive", "its partition is closed until an administrator opens it"),
    (r"PartitionTimeLimit", "its time limit is longer than the partition allows"),
    (r"Priority", "other jobs come first"),
    (r"Resources", "its node is not free yet"),
    (r"JobHeldAdmin", "an administrator holds it"),
    (r"JobHeldUser", "it is held"),
    (r"ReqNodeNotAvail|DOWN, DRAINED|ReservedMaintenance", "its node is down, drained or reserved"),
    (r"Reservation", "it waits for a reservation"),
    (r"Licenses", "licenses are lacking"),
    (r"BeginTime", "it was put off for a while after a failed start"),
    (r"InvalidAccount|AccountNotAllowed", "its account may not be used"),
    (r"InvalidQOS|QOSNotAllowed", "its QOS may not be used"),
)  # fmt: skip


def refusal(words: str, *, user: str, account: str) -> Refusal:
    """Explain, by the batch system's words, why a job is refused; no ``account``: the default."""
    of_whom = {"user": user, "account": f"account {account}" if account else "the default account"}
    begin = "The batch system refuses its pilots: "
    if limit := _limit(words):
        return Refusal(why=f"{begin}{limit}. {_RAISE}", is_for_all=False)
    for pattern, meaning, next_step, is_for_all in _REFUSED:
        if re.search(pattern, words):
            meant = meaning.format_map(of_whom)
            return Refusal(why=f"{begin}{meant}. {next_step}", is_for_all=is_for_all)
    return Refusal(why=f"{begin}{words.rstrip('.')}.", is_for_all=False)


def waiting(reason: str) -> str:
    """Say why a pilot is pending, with the batch system's word for it."""
    if not reason or reason == "None":
        return "the scheduler has not looked at it yet"
    if limit := _limit(reason):
        return limit
    known = next((said for pattern, said in _WAITS if re.search(pattern, reason)), "")
    return f"{known} ({reason})" if known else reason


def waiting_sentences(reasons: Iterable[str]) -> tuple[str, ...]:
    """Say it of all pilots of a trainer that are pending, by their reasons."""
    counts = Counter(reasons)
    return tuple(
        f"{count} of its pilots {'waits' if count == 1 else 'wait'} in the queue: "
        f"{waiting(reason)}."
        for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )


def _limit(words: str) -> str:
    """Name the limit of an account or QOS in the batch system's words; "": there is none."""
    found = _LIMIT.search(words)
    if found is None or "Not" in found[2]:
        return ""
    whose = "the QOS" if found[1] == "QOS" else "the account"
    of_what = next((what for word, what in _OF_WHAT if word in found[2]), "use")
    per = next((whom for word, whom in _PER if word in found[2]), "")
    return f"the limit of {whose} on {of_what}{per} is reached ({found[0]})"


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
        """The reason for refusing all pilots, those without agents or the daemon's; "" if none."""
        return self._why_of_all() or self._why((MUTE, "")) or self._why(DAEMON)

    def may_claim(self, records: Iterable[TrainerRecord] = ()) -> bool:
        """Return whether pilots of anybody, or for one of these trainers, may be requested."""
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

        After the pause they may have one node more, or start last, so that a trial that fails takes
        nothing from others. ``pilot_nodes`` have a pilot, or one was requested.
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
        pilots.on_came = lambda pilot: self.agent_spoke(pilot, trainers.get(pilot.for_trainer))
        pilots.on_explained = self.pilot_explained

    def agent_spoke(self, pilot: Pilot, record: TrainerRecord | None = None) -> None:
        """Learn that the agent of a pilot, which was for this trainer, has connected."""
        if pilot.is_unanswered:
            self.accepted(record)
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
            # Users can write themselves what sbatch, run as them, says.
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
