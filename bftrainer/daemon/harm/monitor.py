"""The harm monitor of a daemon: its book, with the daemon's clock, journal and log.

The daemon passes in every decision and every agent's last message; ``applied`` returns the settings
for the next decision. At start the records and the level are read from the journal.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.daemon.harm import aftermath, backoff, ledger
from bftrainer.daemon.harm.aftermath import Unusable
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.book import HarmBook, LastWords
from bftrainer.daemon.harm.ledger import HarmRecords, Rule, slow_part
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
        self._records: deque[tuple[float, HarmRecords]] = deque(
            _newest(journal), maxlen=KEPT_RECORDS
        )
        events: list[Unusable] = []
        for _, records in self._records:
            events += records.unusable
        self._book = HarmBook(policy, clock(), read_state(journal), events)
        noted = journal.latest(backoff.KIND)
        self._noted_s = -math.inf if noted is None else noted.at_s
        self._noted_level = self._book.state.level

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Measure by another promise from now on."""
        self._book.adopt_policy(policy)

    @property
    def rule(self) -> Rule:
        """The promise in force."""
        return self._book.rule

    @property
    def state(self) -> BackOff:
        """The level of the back-off, and what it follows from."""
        return self._book.state

    @property
    def pending(self) -> PendingPilots:
        """The pilots that stay pending."""
        return self._book.pending

    @property
    def owes_node(self) -> bool:
        """Return whether a node was released for a job, and its new job is not known yet."""
        return self._book.owes_node

    def applied(self, settings: Settings) -> Settings:
        """Return the settings of the next decision."""
        of_decision = self._book.applied(settings, self._clock())
        self._note_level()
        return of_decision

    def cooling(self, now_s: float) -> Mapping[str, Cooling]:
        """Return the nodes that get no pilot now: they were unusable soon after one."""
        return self._book.cooling(now_s)

    def left(self, pilot_id: str, node: str, words: LastWords, waited_s: float = 0.0) -> None:
        """Process an agent's last message, which may have waited so long to be read."""
        self._book.left(pilot_id, node, words, self._clock(), waited_s)

    def ended(self, pilot_id: str, how: PilotObservation) -> None:
        """Process what the batch system says of the end of a pilot."""
        self._book.ended(pilot_id, how)

    def decided(self, situation: DecisionInput, plan: Plan, took_s: float) -> None:
        """Process a decision."""
        settled = self._book.decided(situation, plan, took_s)
        if settled.is_empty:
            return
        self._journal.note(ledger.KIND, settled)
        self._records.append((situation.now_s, settled))
        self._on_settled(settled)
        _warn(settled, self.rule)
        self._note_level()

    def report(self, since_s: float | None) -> HarmReport:
        """Summarise the time since then; None: since the oldest kept record."""
        now_s = self._clock()
        return report_of(self._records, self.state, self.rule, since_s=since_s, until_s=now_s)

    def _note_level(self) -> None:
        """Journal and log the level of the back-off if it is another one."""
        state = self.state
        is_new = state.level != self._noted_level
        # A lasting level is journalled again, because the journal drops old entries.
        if is_new or (state.level and self._clock() - self._noted_s > SAID_AGAIN_S):
            self._journal.note(backoff.KIND, state)
            self._noted_s = self._clock()
        if is_new:
            LOG.warning("%s", backoff.sentence(state) or "bftrainer no longer backs off.")
        self._noted_level = state.level


def _warn(settled: HarmRecords, rule: Rule) -> None:
    """Log the nodes that are unusable after a pilot, and the hand-overs that break the promise."""
    for event in settled.unusable:
        if event.pilot_id:
            LOG.warning(
                "BFT-1334 %s is %s: pilot %s had run there. It gets no pilot for a while.",
                event.node,
                in_one_line(aftermath.in_words(event.state, event.reason, event.after_s)),
                event.pilot_id,
            )
    for hand_over in settled.hand_overs:
        if hand_over.delay_s is not None and hand_over.delay_s > rule.limit_s:
            LOG.warning(
                "job %s got %s after %.2f s: %s",
                hand_over.job_id,
                ledger.what_it_got(hand_over),
                hand_over.delay_s,
                slow_part(hand_over),
            )


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
