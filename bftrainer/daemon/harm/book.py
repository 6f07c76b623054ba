"""What a daemon has measured of its hand-overs, and the level of its back-off: one book.

It goes from decision to decision through the folds of ``ledger``, ``aftermath``, ``pending`` and
``backoff``. It has no clock, no journal and no log: whoever has decided gives the times, and gets
what the decision settled. The daemon's ``monitor`` journals that; ``bftrainer.lab.site.sidecar``
gives the time of a simulated machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from bftrainer.batch.batch_system import PilotObservation
from bftrainer.daemon.harm import aftermath, backoff, ledger, pending
from bftrainer.daemon.harm.aftermath import Aftermath, Unusable
from bftrainer.daemon.harm.backoff import BackOff
from bftrainer.daemon.harm.ledger import Farewell, HandOver, HarmRecords, Ledger, Rule, Vain
from bftrainer.daemon.harm.pending import PendingPilots
from bftrainer.model.decision import Cooling, DecisionInput, Plan, Settings
from bftrainer.site.policy.model import SitePolicy

COUNTED_AFTER_S: Final = 600.0  # nodes that ordinary jobs left are noted at the latest
MAX_LEAVING_S: Final = 60.0  # agents need milliseconds; longer claims are cut to this
MAX_CLOCK_LAG_S: Final = 1.0  # an older last message means that the node's clock is wrong


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


class HarmBook:
    """The hand-overs of one daemon; all times are seconds since the epoch."""

    def __init__(
        self,
        policy: SitePolicy,
        now_s: float,
        state: BackOff | None = None,
        unusable: Iterable[Unusable] = (),
    ) -> None:
        """Go on where an earlier daemon ended, if there was one.

        Args:
            policy: whose promise is kept.
            now_s: the begin.
            state: of the back-off; None: it begins without one.
            unusable: events so far, for which nodes may have to rest.
        """
        self.adopt_policy(policy)
        self.state = state or BackOff()
        self.pending = PendingPilots()
        self._ledger, self._aftermath = Ledger(), Aftermath()
        self._rests = aftermath.with_events({}, unusable)
        self._ordinary_left, self._counted_s = 0, now_s

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Measure by another promise from now on."""
        self.rule, self._promises = rule_of(policy), policy.give_back
        self._cool_down_s = policy.quarantine_s

    @property
    def owes_node(self) -> bool:
        """Return whether a node was released for a job, and its new job is not known yet."""
        return any(end.job is not None for end in self._ledger.ends.values())

    def applied(self, settings: Settings, now_s: float) -> Settings:
        """Return the settings of the next decision; time may have lowered the level."""
        if not self._promises:
            return settings
        self.state = backoff.rested(self.state, self.rule, now_s=now_s)
        return backoff.applied(settings, self.state)

    def cooling(self, now_s: float) -> Mapping[str, Cooling]:
        """Return the nodes that get no pilot now: they were unusable soon after one."""
        return aftermath.cooling(self._rests, self._cool_down_s, now_s)

    def left(
        self, pilot_id: str, node: str, words: LastWords, heard_s: float, waited_s: float = 0.0
    ) -> None:
        """Process an agent's last message, which may have waited so long to be read."""
        told_s, left_s = on_our_clock(words, heard_s, waited_s)
        self._aftermath = aftermath.told(self._aftermath, pilot_id, told_s)
        self._ledger = ledger.farewell(
            self._ledger,
            Farewell(
                pilot_id=pilot_id, node=node, reason=words.reason, told_s=told_s, left_s=left_s
            ),
        )

    def ended(self, pilot_id: str, how: PilotObservation) -> None:
        """Process what the batch system says of the end of a pilot."""
        self._ledger = ledger.explained(self._ledger, pilot_id, how.ended_by)

    def decided(self, situation: DecisionInput, plan: Plan, took_s: float) -> HarmRecords:
        """Process a decision; return what it settled, by which the level may have risen."""
        settled = HarmRecords()
        if self._promises:
            self._ledger, settled = ledger.fold(self._ledger, situation, plan, took_s)
        settled = self._with_aftermath(settled, situation, plan)
        self.pending, of_parts = pending.fold(self.pending, situation)
        settled = replace(settled, pending=of_parts)
        outcomes: list[HandOver | Vain] = [*settled.hand_overs, *settled.vain]
        if outcomes:
            held_nodes = len(settled.hand_overs)  # or parts of nodes
            held_nodes += sum(1 for pilot in situation.pilots if pilot.is_held)
            self.state = backoff.record_hand_overs(
                self.state, outcomes, self.rule, held_nodes=held_nodes, now_s=situation.now_s
            )
        return settled

    def _with_aftermath(
        self, settled: HarmRecords, situation: DecisionInput, plan: Plan
    ) -> HarmRecords:
        """Add which nodes were left, and which are unusable since."""
        now_s = situation.now_s
        self._aftermath, of_snapshot = aftermath.fold(self._aftermath, situation, plan)
        self._rests = aftermath.with_events(self._rests, of_snapshot.unusable)
        self._rests = aftermath.still_spoilt(self._rests, self._aftermath.spoilt, now_s)
        self._ordinary_left += of_snapshot.ordinary_left
        settled = replace(settled, left=of_snapshot.left, unusable=of_snapshot.unusable)
        is_late = now_s - self._counted_s > COUNTED_AFTER_S
        if self._ordinary_left and (is_late or not settled.is_empty):
            settled = replace(settled, ordinary_left=self._ordinary_left)
            self._ordinary_left, self._counted_s = 0, now_s
        return settled


def rule_of(policy: SitePolicy) -> Rule:
    """Return the policy's promise."""
    return Rule(limit_s=policy.harm_slo_s, share=policy.harm_slo_share, quiet_s=policy.harm_quiet_s)


def on_our_clock(words: LastWords, heard_s: float, waited_s: float = 0.0) -> tuple[float, float]:
    """Return when an agent was told and left; by our clock if its own is wrong.

    Args:
        words: its last message.
        heard_s: when we read it, by our clock.
        waited_s: how long it may have waited for that, because we slept.
    """
    left_s = heard_s
    if words.left_s is not None:
        left_s = words.left_s
    told_s = left_s
    if words.told_s is not None:
        told_s = max(min(words.told_s, left_s), left_s - MAX_LEAVING_S)
    if not 0.0 <= heard_s - left_s <= MAX_CLOCK_LAG_S + waited_s:
        told_s, left_s = told_s + heard_s - left_s, heard_s
    return told_s, left_s
