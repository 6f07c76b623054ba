"""Keeps a daemon's polls and decisions for those who ask: figures, accounts, timeline.

Nothing here is part of a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bftrainer.daemon.accountant import Accountant
from bftrainer.daemon.decider import Observed
from bftrainer.daemon.idle_watch import IdleWatch
from bftrainer.daemon.metrics import MetricsRegistry
from bftrainer.daemon.state import InForce
from bftrainer.daemon.uses import CURVES, FILE_NAME, UsesOfNodes
from bftrainer.daemon.uses import KIND as USES
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.trainers.trainers import TrainerBook
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import DecisionInput, Plan
from bftrainer.site.policy.model import SitePolicy


class Chronicle:
    """One per daemon; used in the event loop."""

    def __init__(
        self,
        *,
        journal: Journal,
        incarnation: int,
        state_dir: Path,
        in_force: InForce,
        seen: Observed,
        pilots: PilotBook,
        trainers: TrainerBook,
        metrics: MetricsRegistry,
        clock: Callable[[], float],
    ) -> None:
        """Go on where the journal and the timeline of the last daemon end."""
        self._pilots, self._trainers, self._clock = pilots, trainers, clock
        self.metrics = metrics
        self.accountant = Accountant(
            journal, pilots, trainers, seen, clock, lambda: in_force.policy
        )
        self.uses = UsesOfNodes(
            lambda: in_force.policy.time_zone,
            lambda note: journal.note(USES, note),
            lambda note: journal.note(CURVES, note),
        )
        self.uses.incarnation = incarnation
        self._timeline_file = state_dir / FILE_NAME
        self.uses.take_over(self._timeline_file, clock())
        self.idle_watch = IdleWatch()

    def adopt_policy(self, policy: SitePolicy) -> None:
        """Go by another policy from now on."""
        self.idle_watch.adopt_policy(policy)

    def decided(self, situation: DecisionInput, plan: Plan, took_s: float) -> None:
        """Add a decision that was carried out, and what it saw."""
        self.metrics.decided(took_s)
        self.uses.saw(situation, plan, (self._pilots.give_backs, self._pilots.preemptions))
        self.idle_watch.saw(situation, plan)

    def look(self) -> None:
        """Add what has changed of trainers; once a second."""
        self.uses.look(self._trainers.touched, self._clock(), self._trainers.records.values())

    def close(self) -> None:
        """Write everything down, and answer those who wait for something new."""
        self.accountant.close()
        self.look()
        self.uses.close(self._timeline_file)
        self._trainers.news.close()
