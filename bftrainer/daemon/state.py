"""The daemon's state as views read it: no view can stop, decide or give back anything.

``Incarnation`` builds one ``DaemonState`` at its start; its books change as the daemon runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from bftrainer.api.volume import Volume
from bftrainer.batch.batch_system import BatchSystem
from bftrainer.daemon.accountant import Accountant
from bftrainer.daemon.awakenings import Awakenings
from bftrainer.daemon.decider import DecisionFailures, Observed
from bftrainer.daemon.disk_room import DiskRoom
from bftrainer.daemon.harm.monitor import HarmMonitor
from bftrainer.daemon.idle_watch import IdleWatch
from bftrainer.daemon.kill_switch import Draining
from bftrainer.daemon.metrics import MetricsRegistry
from bftrainer.daemon.poller import Poller
from bftrainer.daemon.uses import UsesOfNodes
from bftrainer.decide.policies.base import AllocationPolicy
from bftrainer.decide.policies.base import load_policy as load_allocation_policy
from bftrainer.fleet.control_plane import ControlPlane
from bftrainer.fleet.pilots.pilots import PilotBook
from bftrainer.fleet.pilots.refusals import PilotRefusals
from bftrainer.fleet.pilots.vain import LateAgents
from bftrainer.journal.journal import Journal
from bftrainer.model.decision import Settings
from bftrainer.site.policy.model import SitePolicy, policy_hash, settings_of


@dataclass(slots=True, kw_only=True)
class InForce:
    """The policy in force and what follows from it; a reload replaces them together."""

    policy: SitePolicy
    policy_hash: str
    settings: Settings
    allocate: AllocationPolicy

    @classmethod
    def of(cls, policy: SitePolicy, system: BatchSystem) -> Self:
        """Load the allocation policy; BFT-3050: it is not installed."""
        return cls(
            policy=policy,
            policy_hash=policy_hash(policy),
            settings=settings_of(policy, system),
            allocate=load_allocation_policy(policy.policy),
        )

    def become(self, policy: SitePolicy, system: BatchSystem) -> None:
        """Put another policy in force, all of it at once; BFT-3050, and nothing has changed."""
        following = InForce.of(policy, system)
        self.policy, self.policy_hash = following.policy, following.policy_hash
        self.settings, self.allocate = following.settings, following.allocate


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonState:
    """The books of a daemon, what it saw last, and what it does about it."""

    incarnation: int
    started_s: float
    batch_system: str
    public_key: str
    in_force: InForce
    seen: Observed
    journal: Journal
    plane: ControlPlane
    pilots: PilotBook
    refusals: PilotRefusals
    late: LateAgents  # of pilots whose agents do not connect
    harm: HarmMonitor
    accountant: Accountant
    volume: Volume  # bytes that users have had us write
    disk: DiskRoom
    draining: Draining
    poller: Poller
    metrics: MetricsRegistry
    failures: DecisionFailures
    policy_notes: Callable[[], tuple[str, ...]]  # of reloads
    policy_files: tuple[str, ...]  # that it was started with
    batch_pairs: tuple[str, ...]  # likewise, KEY=VALUE
    uses: UsesOfNodes
    idle_watch: IdleWatch
    awakenings: Awakenings
