"""States, takes and journals decisions, even if the input contains invalid records.

``decide_surely`` leaves out what a decision fails on and continues, so a bug shows only here and in
``status``. One ``DecisionFailures`` per daemon.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from traceback import extract_tb
from typing import Final

from bftrainer.decide.exclusion import sentences, without_the_gone, writable
from bftrainer.decide.isolation import decide_surely
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.journal.differences import difference
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import CanonicalError
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import (
    Cooling,
    DecisionInput,
    DecisionRecord,
    Event,
    Known,
    Memory,
    PilotView,
    Plan,
    Settings,
    Situation,
    Slept,
)
from bftrainer.model.fairness import Blackout

LOG = logging.getLogger("bftrainer.decide")
MOST_PLACES = 1000  # logged; the journal has all


class DecisionFailures:
    """The failures of one daemon's decisions."""

    def __init__(self) -> None:
        self.count = 0
        self._logged: set[str] = set()
        self._left_out: Known = {}

    def add(self, failure: Exception) -> None:
        """Count a failure; log the first one of each place, with its traceback."""
        self.count += 1
        frames = extract_tb(failure.__traceback__)
        place = f"{type(failure).__name__} {frames[-1].filename}:{frames[-1].lineno}"
        if place not in self._logged and len(self._logged) < MOST_PLACES:
            self._logged.add(place)
            LOG.error("a decision failed; it is repeated without the cause", exc_info=failure)

    def left_out(self, known: Known) -> None:
        """Log what is newly left out."""
        if known or self._left_out:
            fresh = {key: one for key, one in known.items() if key not in self._left_out}
            for sentence in sentences(fresh):
                LOG.error("%s", sentence)
            self._left_out = known


DECISION: Final = "decision"  # kind of the journal's entries
_AWAKE: Final = Slept()  # all the time


def input_of(
    snapshot: Snapshot,
    book: TrainerBook,
    pilots: tuple[PilotView, ...],
    refusals: PilotRefusals,
    settings: Settings,
    memory: Memory,
    *,
    now_s: float,
    is_new_snapshot: bool,
    may_claim: bool = True,
    gives_back_only: bool = False,
    resting: Mapping[str, Cooling],
    blackout: Blackout | None = None,
    slept: Slept = _AWAKE,
) -> DecisionInput:
    """State what a decision depends on, as it is now."""
    trainers, memory = refusals.allowed(
        book.waiting.eligible(), memory, {pilot.node for pilot in pilots}
    )
    who = book.occupancy({record.trainer_id for record in trainers})
    return DecisionInput(
        now_s=now_s,
        snapshot=snapshot,
        is_new_snapshot=is_new_snapshot,
        gives_back_only=gives_back_only,
        pilots=pilots,
        trainers=book.waiting.as_decided(trainers),
        settings=settings,
        memory=memory,
        may_claim=may_claim and refusals.may_claim(trainers),
        training=who.training,
        occupied=who.occupied,
        speeds=book.speeds.speeds(memory.slow_nodes),
        cooling={**book.quarantine.cooling(now_s), **resting},
        settled_until_s=who.settled_until_s,
        blackout=blackout,
        apart=who.apart,
        slept=slept,
    )


class Decider:
    """Decides for one daemon, with one policy."""

    def __init__(
        self, allocate: AllocationPolicy, policy_hash: str, failures: DecisionFailures
    ) -> None:
        self._allocate, self._policy_hash, self._failures = allocate, policy_hash, failures
        self._sound: DecisionInput | None = None  # the input of the last decision
        self._looked: Snapshot | None = None  # the last serialisable snapshot

    def adopt_policy(self, allocate: AllocationPolicy, policy_hash: str) -> None:
        """Decide by another policy from now on; not while a decision is being taken."""
        self._allocate, self._policy_hash = allocate, policy_hash

    def look_into(self, seen: Snapshot) -> Snapshot:
        """Return the snapshot; check whether it can be serialised (one thread at a time).

        This is the slowest part of checking a decision's input, so the polling thread does it.
        """
        with suppress(CanonicalError):  # ``sound`` leaves out the offending part
            difference(self._looked, seen, Snapshot | None)
            self._looked = seen
        return seen

    def take(self, given: DecisionInput) -> tuple[DecisionInput, Plan, float]:
        """Decide (any thread, one at a time).

        Returns:
            The input without what cannot be serialised, the plan, and the duration in seconds.
        """
        given = self.sound(without_the_gone(given))
        started = time.perf_counter()
        plan = decide_surely(given, self._allocate, self._failures.add)
        return given, plan, time.perf_counter() - started

    def sound(self, given: DecisionInput) -> DecisionInput:
        """Return the input without parts that cannot be serialised."""
        try:
            # Parts equal to known serialisable ones are not checked again, so this is cheap.
            known = self._sound
            if known is not None and self._looked is not None:
                known = replace(known, snapshot=self._looked)
            difference(known, given, DecisionInput | None)
        except CanonicalError as problem:  # e.g. NaN
            self._failures.add(problem)
            given = writable(given)
        self._sound = given
        return given

    def note(
        self,
        journal: Journal,
        given: DecisionInput,
        plan: Plan,
        *,
        event: Event | None,
        took_ms: float,
    ) -> None:
        """Journal a decision, after its requests have been sent."""
        record = DecisionRecord(
            event=event, input=given, policy_hash=self._policy_hash, plan=plan, took_ms=took_ms
        )
        journal.note_large(DECISION, record)


@dataclass(slots=True, kw_only=True)
class Observed:
    """As of the last poll and the last decision."""

    snapshot: Snapshot | None = None
    situation: Situation | None = None
    plan: Plan | None = None
    given: DecisionInput | None = None  # that the plan follows from
    memory: Memory = field(default_factory=Memory)
    decisions: int = 0
    decision_ms: float = 0.0
    decided_s: float | None = None

    def is_to_wake(self, now_s: float) -> bool:
        """Return whether the policy asked for a decision by now."""
        wake_at_s = self.plan.wake_at_s if self.plan is not None else None
        return wake_at_s is not None and wake_at_s <= now_s
