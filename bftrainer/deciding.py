"""Takes decisions and writes them down, whatever numbers came in.

Called by the daemon for each of its decisions; the policy's allocations and the journal are
used here.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bftrainer.canonical import CanonicalError
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.journal.changes import difference
from bftrainer.journal.journal import Journal
from bftrainer.model.cluster import Snapshot
from bftrainer.model.decision import DecisionInput, DecisionRecord, Plan
from bftrainer.model.event import Event
from bftrainer.observability.decision_failures import DecisionFailures
from bftrainer.surviving.decision import decide_surely
from bftrainer.surviving.leaving_out import writable

DECISION: Final = "decision"  # kind of the journal's entries


class Decider:
    """Decides for one daemon, by one policy."""

    def __init__(
        self, allocate: AllocationPolicy, policy_hash: str, failures: DecisionFailures
    ) -> None:
        self._allocate, self._policy_hash, self._failures = allocate, policy_hash, failures
        self._sound: DecisionInput | None = None  # what was decided on last
        self._looked: Snapshot | None = None  # the last look that can be written down

    def look_into(self, seen: Snapshot) -> Snapshot:
        """Return it; whether it can be written down is known then (one thread at a time).

        It takes longest of all that a decision is taken of, so it is done where looks are made.
        """
        with suppress(CanonicalError):  # ``sound`` leaves out who is at fault
            difference(self._looked, seen, Snapshot | None)
            self._looked = seen
        return seen

    def take(self, given: DecisionInput) -> tuple[DecisionInput, Plan, float]:
        """Decide (any thread, one at a time).

        Returns:
            What was decided on (without whoever cannot be written down), what was decided,
            and how many seconds it took.
        """
        given = self.sound(given)
        started = time.perf_counter()
        plan = decide_surely(given, self._allocate, self._failures.add)
        return given, plan, time.perf_counter() - started

    def sound(self, given: DecisionInput) -> DecisionInput:
        """Return it without whoever cannot be written down."""
        try:
            # What equals something that can be written is not looked into: it costs little.
            known = self._sound
            if known is not None and self._looked is not None:
                known = replace(known, snapshot=self._looked)
            difference(known, given, DecisionInput | None)
        except CanonicalError as problem:  # a number that is none
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
        """Have a decision written down, after its requests have gone out."""
        record = DecisionRecord(
            event=event, input=given, policy_hash=self._policy_hash, plan=plan, took_ms=took_ms
        )
        journal.note_large(DECISION, record)
