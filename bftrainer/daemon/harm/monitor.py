"""The harm monitor of a daemon: ledger, back-off, their journal entries and log.

The daemon passes in every decision and every agent's last message; ``applied`` returns the settings
for the next decision. At start the records and the level are read from the journal.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.daemon.harm import aftermath, backoff, ledger, pending
from bftrainer.daemon.harm.aftermath import Aftermath, Unusable
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import (
    Farewell,
    HandOver,
    HarmRecords,
    Ledger,
    Rule,
    Vain,
    slow_part,
)
from bftrainer.daemon.harm.pending import PendingPilots
from bftrainer.daemon.harm.report import make_report
from bftrainer.ground.fields import in_one_line
from bftrainer.journal.journal import Journal
from bftrainer.journal.projection import JournalEntry
from bftrainer.model.decision import Cooling, DecisionInput, Plan, Settings
from bftrainer.model.reports import HarmReport
from bftrainer.site.policy.model import SitePolicy

LOG = logging.getLogger("bftrainer.harm")
KEPT_RECORDS = 10_000  # snapshots that settled something; the journal has all
SAID_AGAIN_S = 86_400.0
COUNTED_AFTER_S = 600.0  # nodes that ordinary jobs left are noted at the latest
MAX_LEAVING_S = 60.0  # agents need milliseconds; longer claims are cut to this
MAX_CLOCK_LAG_S = 1.0  # an older last message means that the node's clock is wrong


class LastWords(Protocol):
    """The fields used of an agent's ``Leaving``."""

    @property
    def reason(self) -> str:
        """The agent's reason for leaving."""

    @property
    def told_s(self) -> float | None:
        """Time at which the agent was told to leave, on its node's clock."""

    @property
    def left_s(self) -> float | None:
        """Time at which the agent sent the message, on its node's clock."""


class HarmMonitor:
    """Measures how long ordinary jobs wait for us, and backs off if it is too long."""

    def __init__(
        self,
        journal: Journal,
        policy: SitePolicy,
        clock: Callable[[], float],
        on_settled: Callable[[HarmRecords], None] = lambda _: None,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._on_settled = on_settled
        self.adopt_policy(policy)
        self._ledger, self._aftermath = Ledger(), Aftermath()
        self.pending = PendingPilots()
        self._ordinary_left, self._counted_s = 0, clock()
        self._records: deque[tuple[float, HarmRecords]] = deque(
            _newest(journal), maxlen=KEPT_RECORDS
        )
        events: list[Unusable] = []
        for _, records in self._records:
            events += records.unusable
        self._rests = aftermath.with_events({}, events)
        self.state = read_state(journal)
        noted = journal.latest(backoff.KIND)
        self._noted_s = -math.inf if noted is None else noted.at_s

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Measure by another promise from now on."""
        self.rule, self._promises = rule_of(policy), policy.give_back
        self._cool_down_s = policy.quarantine_s

    @property
    def owes_node(self) -> bool:
        """Return whether a node was released for a job, and its new job is not known yet."""
        return any(end.job is not None for end in self._ledger.ends.values())

    def applied(self, settings: Settings) -> Settings:
        """Return the settings of the next decision."""
        if not self._promises:
            return settings
        state = backoff.rested(self.state, self.rule, now_s=self._clock())
        self._change(state)
        return backoff.applied(settings, self.state)

    def cooling(self, now_s: float) -> Mapping[str, Cooling]:
        """Return the nodes that get no pilot now: they were unusable soon after one."""
        return aftermath.cooling(self._rests, self._cool_down_s, now_s)

    def left(self, pilot_id: str, node: str, said: LastWords, waited_s: float = 0.0) -> None:
        """Process an agent's last message, which may have waited so long to be read."""
        told_s, left_s = on_our_clock(said, self._clock(), waited_s)
        self._aftermath = aftermath.told(self._aftermath, pilot_id, told_s)
        self._ledger = ledger.farewell(
            self._ledger,
            Farewell(
                pilot_id=pilot_id, node=node, reason=said.reason, told_s=told_s, left_s=left_s
            ),
        )

    def ended(self, pilot_id: str, seen: PilotObservation) -> None:
        """Process what the batch system says of the end of a pilot."""
        self._ledger = ledger.explained(self._ledger, pilot_id, seen.ended_by)

    def decided(self, given: DecisionInput, plan: Plan, took_s: float) -> None:
        """Process a decision."""
        settled = HarmRecords()
        if self._promises:
            self._ledger, settled = ledger.fold(self._ledger, given, plan, took_s)
        settled = self._with_aftermath(settled, given, plan)
        self.pending, of_parts = pending.fold(self.pending, given)
        settled = replace(settled, pending=of_parts)
        if settled.is_empty:
            return
        self._journal.note(ledger.KIND, settled)
        self._records.append((given.now_s, settled))
        self._on_settled(settled)
        for hand_over in settled.hand_overs:
            if hand_over.delay_s is not None and hand_over.delay_s > self.rule.limit_s:
                LOG.warning(
                    "job %s got %s after %.2f s: %s",
                    hand_over.job_id,
                    ledger.what_it_got(hand_over),
                    hand_over.delay_s,
                    slow_part(hand_over),
                )
        held_nodes = len(settled.hand_overs)  # or parts of nodes
        held_nodes += sum(1 for pilot in given.pilots if pilot.is_held)
        state = self.state
        outcomes: list[HandOver | Vain] = [*settled.hand_overs, *settled.vain]
        for outcome in outcomes:
            state = backoff.record_hand_over(
                state, outcome, self.rule, held_nodes=held_nodes, now_s=given.now_s
            )
        self._change(state)

    def _with_aftermath(
        self, settled: HarmRecords, given: DecisionInput, plan: Plan
    ) -> HarmRecords:
        """Add which nodes were left, and which are unusable since."""
        self._aftermath, of_snapshot = aftermath.fold(self._aftermath, given, plan)
        for event in of_snapshot.unusable:
            if event.pilot_id:
                LOG.warning(
                    "BFT-1334 %s is %s: pilot %s had run there. It gets no pilot for a while.",
                    event.node,
                    in_one_line(aftermath.in_words(event.state, event.reason, event.after_s)),
                    event.pilot_id,
                )
        self._rests = aftermath.with_events(self._rests, of_snapshot.unusable)
        self._rests = aftermath.still_spoilt(self._rests, self._aftermath.spoilt, given.now_s)
        self._ordinary_left += of_snapshot.ordinary_left
        settled = replace(settled, left=of_snapshot.left, unusable=of_snapshot.unusable)
        is_late = given.now_s - self._counted_s > COUNTED_AFTER_S
        if self._ordinary_left and (is_late or not settled.is_empty):
            settled = replace(settled, ordinary_left=self._ordinary_left)
            self._ordinary_left, self._counted_s = 0, given.now_s
        return settled

    def report(self, since_s: float | None) -> HarmReport:
        """Summarise the time since then; None: since the oldest kept record."""
        now_s = self._clock()
        return report_of(self._records, self.state, self.rule, since_s=since_s, until_s=now_s)

    def _change(self, state: BackOff) -> None:
        is_new = state.level != self.state.level
        # A lasting level is journalled again, because the journal drops old entries.
        if is_new or (state.level and self._clock() - self._noted_s > SAID_AGAIN_S):
            self._journal.note(backoff.KIND, state)
            self._noted_s = self._clock()
        if is_new:
            LOG.warning("%s", backoff.sentence(state) or "bftrainer no longer backs off.")
        self.state = state


def rule_of(policy: SitePolicy) -> Rule:
    """Return the policy's promise."""
    return Rule(limit_s=policy.harm_slo_s, share=policy.harm_slo_share, quiet_s=policy.harm_quiet_s)


def on_our_clock(said: LastWords, heard_s: float, waited_s: float = 0.0) -> tuple[float, float]:
    """Return when an agent was told and left; by our clock if its own is wrong.

    Args:
        said: its last message.
        heard_s: when we read it, by our clock.
        waited_s: how long it may have waited for that, because we slept.
    """
    left_s = heard_s
    if said.left_s is not None:
        left_s = said.left_s
    told_s = left_s
    if said.told_s is not None:
        told_s = max(min(said.told_s, left_s), left_s - MAX_LEAVING_S)
    if not 0.0 <= heard_s - left_s <= MAX_CLOCK_LAG_S + waited_s:
        told_s, left_s = told_s + heard_s - left_s, heard_s
    return told_s, left_s


def read_records(journal: Journal) -> Iterable[tuple[float, HarmRecords]]:
    """Read what was settled, oldest first, each with its time."""
    return _readable(journal.entries(ledger.KIND))


def _newest(journal: Journal) -> Iterable[tuple[float, HarmRecords]]:
    """The newest records, as many as are kept."""
    return _readable(journal.newest(ledger.KIND, KEPT_RECORDS))


def _readable(entries: Iterable[JournalEntry]) -> Iterable[tuple[float, HarmRecords]]:
    """Skip entries in another release's format, with one log line."""
    passed_over = 0
    for entry in entries:
        records = entry.payload_if(HarmRecords)
        if records is None:
            passed_over += 1
        else:
            yield entry.at_s, records
    if passed_over:
        LOG.warning("%d hand-over records of another release are not counted", passed_over)


def read_state(journal: Journal) -> BackOff:
    """Read the last level of the back-off; level 0 if another release wrote it differently."""
    last = journal.latest(backoff.KIND)
    if last is None:
        return BackOff()
    return last.payload_if(BackOff) or BackOff()


def report_of(
    timed_records: Iterable[tuple[float, HarmRecords]],
    state: BackOff,
    rule: Rule,
    *,
    since_s: float | None,
    until_s: float,
) -> HarmReport:
    """Summarise the records of a period, oldest first; ``since_s``: None, all of them."""
    begin_s, records = since_s, list[HarmRecords]()
    for at_s, settled in timed_records:
        if begin_s is None:
            begin_s = at_s
        if since_s is None or at_s >= since_s:
            records.append(settled)
    if begin_s is None:
        begin_s = until_s
    return make_report(records, state, rule, since_s=begin_s, until_s=until_s)
