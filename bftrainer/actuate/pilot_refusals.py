"""Refused pilot requests: why, whose, and the pause before the next request.

A refusal concerns those who would be charged, a user and an account, or all. Their trainers keep
the nodes they have; after the pause, which doubles, one request is tried.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from bftrainer.explain.pilots import refusal
from bftrainer.model.decision import Claim, Memory
from bftrainer.model.trainer import TrainerRecord
from bftrainer.submit.client import HELPER_SAYS

LOG = logging.getLogger("bftrainer.pilots")
MAX_PAUSE_S: Final = 300.0
MOST: Final = 1000  # who is remembered
Whom = tuple[str, str]  # user, "": the daemon's; account, "": the default one
ALL: Final[Whom] = ("*", "*")
DAEMON: Final[Whom] = ("", "")


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

    @property
    def why(self) -> str:
        """Why pilots are refused, whosever they are, or the daemon's own; "": they are not."""
        return self._why_of_all() or self._why(DAEMON)

    def may_claim(self, records: Iterable[TrainerRecord] = ()) -> bool:
        """Whether pilots of anybody, or for one of these trainers, may be requested."""
        if self.closed or not self._pause(ALL).is_over:
            return False
        concerned = [self._pause(self.whom(record)).is_over for record in records]
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
        return self._why_of_all() or self._why(self.whom(record))

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
        refused = {r.trainer_id: self._pause(self.whom(r)) for r in records}
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
            whom = self.whom(trainers.get(claim.for_trainer))
            is_trial = bool(self._why(whom) or self._why(ALL))
            if self._pause(whom).is_over and not (is_trial and whom in seen):
                chosen.append(claim)
            seen.add(whom)
        return chosen

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
        pause = self._pauses.setdefault(whom, _Pause())
        if pause.why != why:
            LOG.warning("%s%s", why, "" if words in why else f" ({words})")
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

    def _pause(self, whom: Whom) -> _Pause:
        return self._pauses.get(whom) or _Pause()

    def _why(self, whom: Whom) -> str:
        return self._pause(whom).why
