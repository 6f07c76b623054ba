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
from bftrainer.decide.observation import event_between, situation_of
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.journal.differences import difference
from bftrainer.journal.journal import Journal
from bftrainer.model.canonical import CanonicalError
from bftrainer.model.cluster import Job, Node, Snapshot
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
from milp.problem import Allocation

LOG = logging.getLogger("bftrainer.decide")
MOST_PLACES: Final = 1000  # logged; the journal has all
DECISION: Final = "decision"  # kind of the journal's entries
MS_PER_S: Final = 1000.0
_AWAKE: Final = Slept()  # all the time


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

    def left_out(self, excluded: Known) -> None:
        """Log what is newly left out."""
        fresh = {key: item for key, item in excluded.items() if key not in self._left_out}
        for sentence in sentences(fresh):
            LOG.error("%s", sentence)
        self._left_out = excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenDecision:
    """What was decided, on what, and how long it took."""

    input: DecisionInput  # without what cannot be serialised
    plan: Plan
    took_s: float


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
    occupancy = book.occupancy({record.trainer_id for record in trainers})
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
        training=occupancy.training,
        occupied=occupancy.occupied,
        speeds=book.speeds.speeds(memory.slow_nodes),
        cooling={**book.quarantine.cooling(now_s), **resting},
        settled_until_s=occupancy.settled_until_s,
        blackout=blackout,
        apart=occupancy.apart,
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

    def look_into(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot; check whether it can be serialised (one thread at a time).

        This is the slowest part of checking a decision's input, so the polling thread does it.
        """
        with suppress(CanonicalError):  # ``sound`` leaves out the offending part
            difference(self._looked, snapshot, Snapshot | None)
            self._looked = snapshot
        return snapshot

    def take(self, situation: DecisionInput) -> TakenDecision:
        """Decide (any thread, one at a time)."""
        sound = self.sound(without_the_gone(situation))
        started_s = time.perf_counter()
        plan = decide_surely(sound, self._allocate, self._failures.add)
        return TakenDecision(input=sound, plan=plan, took_s=time.perf_counter() - started_s)

    def sound(self, situation: DecisionInput) -> DecisionInput:
        """Return the input without parts that cannot be serialised."""
        try:
            # Parts equal to serialisable ones of before are not checked again, so this is cheap.
            before = self._sound
            if before is not None and self._looked is not None:
                before = replace(before, snapshot=self._looked)
            difference(before, situation, DecisionInput | None)
        except CanonicalError as problem:  # e.g. NaN
            self._failures.add(problem)
            situation = writable(situation)
        self._sound = situation
        return situation

    def note(
        self,
        journal: Journal,
        decision: TakenDecision,
        *,
        event: Event | None,
    ) -> None:
        """Journal a decision, after its requests have been sent."""
        record = DecisionRecord(
            event=event,
            input=decision.input,
            policy_hash=self._policy_hash,
            plan=decision.plan,
            took_ms=MS_PER_S * decision.took_s,
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

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of the last snapshot; () if unknown."""
        if self.snapshot is None:
            return ()
        return self.snapshot.nodes or ()

    @property
    def jobs(self) -> tuple[Job, ...]:
        """All jobs of the last snapshot; () if unknown."""
        if self.snapshot is None:
            return ()
        return self.snapshot.jobs or ()

    @property
    def allocation(self) -> Allocation | None:
        """What the policy answered last; None: nothing was to be allocated."""
        if self.plan is None:
            return None
        return self.plan.allocation

    @property
    def pool_size(self) -> int:
        """Number of nodes that the last plan could use."""
        if self.plan is None:
            return 0
        return len(self.plan.pool)

    def is_news(self, plan: Plan) -> bool:
        """Return whether a plan asks for anything, or gives nodes to others than the last."""
        if self.plan is None or plan.claims or plan.releases:
            return True
        return plan.assignment != self.plan.assignment

    def follow(self, situation: DecisionInput, plan: Plan) -> None:
        """Go by a plan; of one that only gives back, the full one before is still shown."""
        self.memory = plan.memory
        if self.plan is None or not situation.gives_back_only:
            self.plan, self.given = plan, situation

    def event_of(self, decided: DecisionInput) -> Event | None:
        """Return what is other than at the decision before; None: nothing, or there was none."""
        nodes = [pilot.node for pilot in decided.pilots if not pilot.is_leaving]
        trainers = [record.trainer_id for record in decided.trainers]
        pilots = [pilot.pilot_id for pilot in decided.pilots if pilot.is_held]
        before, after = self.situation, situation_of(decided.snapshot, nodes, trainers, pilots)
        self.situation = after
        if before is None:
            return None
        return event_between(before, after, decided.now_s)

    def count(self, decision: TakenDecision) -> None:
        """Count a decision that the journal keeps."""
        self.decisions += 1
        self.decision_ms = MS_PER_S * decision.took_s
        self.decided_s = decision.input.now_s

    def is_to_wake(self, now_s: float) -> bool:
        """Return whether the policy asked for a decision by now."""
        wake_at_s = None
        if self.plan is not None:
            wake_at_s = self.plan.wake_at_s
        return wake_at_s is not None and wake_at_s <= now_s
