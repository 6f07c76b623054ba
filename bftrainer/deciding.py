"""Takes a decision and writes it down, whatever numbers came in.

Called by the daemon for each of its decisions; the policy's allocations, the journal and
what the daemon last decided (``observed``) are used here.
"""

from __future__ import annotations

import time

from bftrainer.canonical import CanonicalError
from bftrainer.decide.decision import decide
from bftrainer.decide.policies.base import Policy
from bftrainer.decide.types import DecisionInput, DecisionRecord, Plan
from bftrainer.decide.writable import writable
from bftrainer.events.change import Event
from bftrainer.journal.journal import Journal
from bftrainer.observability.failures import Failures
from bftrainer.observed import Observed


class Decider:
    """Decides for one daemon, by one policy."""

    def __init__(self, allocate: Policy, policy_hash: str, failures: Failures) -> None:
        self._allocate, self._policy_hash, self._failures = allocate, policy_hash, failures

    def take(
        self, given: DecisionInput, event: Event | None, seen: Observed, journal: Journal
    ) -> tuple[DecisionInput, Plan, float]:
        """Decide; what follows from it is in the journal, and in ``seen``, when this returns.

        Returns:
            What was decided on (without whoever cannot be written down), what was decided,
            and how many seconds it took.
        """
        try:
            return self._take(given, event, seen, journal)
        except CanonicalError as problem:  # a number that is none
            self._failures.add(problem)
            return self._take(writable(given), event, seen, journal)

    def _take(
        self, given: DecisionInput, event: Event | None, seen: Observed, journal: Journal
    ) -> tuple[DecisionInput, Plan, float]:
        started = time.perf_counter()
        plan = decide(given, self._allocate, self._failures.add)
        took_s = time.perf_counter() - started
        self._failures.left_out(plan.memory.left_out)
        changed = seen.plan is None or plan.assignment != seen.plan.assignment
        if event or changed or plan.claims or plan.releases:
            took_ms = 1000.0 * took_s
            record = DecisionRecord(
                event=event,
                input=given,
                policy_hash=self._policy_hash,
                plan=plan,
                took_ms=took_ms,
            )
            seen.decision_seq = journal.note("decision", record)
            seen.decisions += 1
            seen.decision_ms, seen.decided_s = took_ms, given.now_s
        return given, plan, took_s
