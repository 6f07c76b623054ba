"""Keeps a daemon's polls and decisions for those who ask: figures, accounts, timeline.

Nothing here is part of a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bftrainer.api.volume import Volume
from bftrainer.daemon.accountant import Accountant
from bftrainer.daemon.decider import Observed
from bftrainer.daemon.disk_room import DiskRoom
from bftrainer.daemon.idle_watch import IdleWatch
from bftrainer.daemon.metrics import MetricsRegistry
from bftrainer.daemon.state import InForce
from bftrainer.daemon.uses import CURVES, FILE_NAME, UsesOfNodes
from bftrainer.daemon.uses import KIND as USES
from bftrainer.daemon.volume_file import VOLUME_NAME, VolumeFile
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.trainers.remainder import LOOK_EVERY_S
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
        self.volume = Volume(lambda: in_force.policy.written_mb_per_day_per_user, clock)
        self.disk = DiskRoom(state_dir)
        self._cleared_s = clock()
        self._volume_file = VolumeFile(self.volume, state_dir / VOLUME_NAME)
        trainers.takes_report = self.volume.takes_report

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
        self._volume_file.look(self._clock())
        self.disk.look(self._clock())
        if not 0.0 <= self._clock() - self._cleared_s < LOOK_EVERY_S:
            self._cleared_s = self._clock()
            self._trainers.clear()

    def close(self) -> None:
        """Write everything down, and answer those who wait for something new."""
        self.accountant.close()
        self._trainers.write_reports()
        self.look()
        self.uses.close(self._timeline_file)
        self._volume_file.keep()
        self._trainers.news.close()
