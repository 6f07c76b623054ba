"""The daemon's interface for its users: the protocol behind every API route.

``bftrainer.daemon.service`` implements ``Service``, ``bftrainer.api.server`` serves it. Its results
are views (``bftrainer.model.views``).
"""

from __future__ import annotations

import pwd
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bftrainer.model.reports import AccountReport, Asked, HarmReport
from bftrainer.model.study import Seen, StudyCount, StudyView, TrialView
from bftrainer.model.timeline import TimelineView
from bftrainer.model.trainer import TrainerChange, TrainerSpec
from bftrainer.model.views import (
    DrainView,
    Explanation,
    LogFile,
    NodeView,
    ReloadView,
    StatusView,
    TrainerView,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """The requesting user and process, as reported by the kernel (SO_PEERCRED)."""

    uid: int
    user: str
    pid: int


def user_name(uid: int) -> str:
    """Return the account's name, or its number if it has none; may take long."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class TrialService(Protocol):
    """The calls that studies make; implemented by ``bftrainer.daemon.service``."""

    def studies(self, user: str) -> tuple[StudyCount, ...]:
        """Return the user's studies."""

    def study(self, user: str, study: str, seen: Seen | None = None) -> StudyView:
        """Return the trials of a study; only what is new to who has seen this daemon's."""

    async def news(self, user: str, study: str, seen: Seen, limit_s: float) -> None:
        """Wait until a study is another than it was seen, or the time is over."""

    def unknown(self, specs: Sequence[TrainerSpec]) -> tuple[TrainerSpec, ...]:
        """Return those that are not submitted yet."""

    def submit(self, specs: Sequence[TrainerSpec], peer: Peer) -> tuple[TrialView, ...]:
        """Accept trials of one study, all or none; durable when this returns."""


class Service(Protocol):
    """Implemented by ``bftrainer.daemon.service``; raises ``BftError`` with codes 10xx and 11xx."""

    @property
    def trials(self) -> TrialService:
        """Return what studies ask."""

    def status(self) -> StatusView:
        """Return the daemon's state."""

    def nodes(self) -> tuple[NodeView, ...]:
        """Return every node of the last snapshot."""

    def timeline(self, seen: Seen | None) -> TimelineView:
        """Return the uses of all nodes of late, or what is new to who has seen this daemon's."""

    async def news(self, seen: Seen, limit_s: float) -> None:
        """Wait until something is other than it was seen, or the time is over."""

    def trainers(self) -> tuple[TrainerView, ...]:
        """Return all trainers in order of submission."""

    def trainer(self, trainer_id: str) -> TrainerView:
        """Return one trainer; BFT-1004 if there is none."""

    def explain(self, trainer_id: str) -> Callable[[], Explanation]:
        """Collect why the trainer has this size or does not run; the result says it, anywhere."""

    def logs(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Return its log files, oldest first; reads users' files, so not in the event loop."""

    def harm(self, since_s: float | None) -> HarmReport:
        """Summarise the effect on ordinary jobs since then; None: since the start."""

    def account(self, asked: Asked) -> Callable[[], AccountReport]:
        """Collect who used what; the result sums up, anywhere."""

    def metrics(self) -> str:
        """Return all metrics in Prometheus' text format."""

    def submit(self, spec: TrainerSpec, peer: Peer) -> TrainerView:
        """Accept a trainer; it is durable when this returns."""

    def cancel(self, trainer_id: str, peer: Peer, *, now: bool = False) -> TrainerView:
        """End a trainer, after a checkpoint unless ``now``; BFT-1005: not the peer's own."""

    def change(self, trainer_id: str, change: TrainerChange, peer: Peer) -> TrainerView:
        """Hold, release or update a trainer; BFT-1005, and BFT-1043 if it has ended."""

    def requeue(self, trainer_id: str, peer: Peer) -> TrainerView:
        """Start it again from its checkpoint; one that has ended becomes a new trainer."""

    def flush(self) -> None:
        """Wait until accepted entries are on disk or have failed; not in the event loop."""

    async def reload(self, peer: Peer) -> ReloadView:
        """Read the policy again; BFT-1546 and BFT-21xx: it stays as it was."""

    def drain(self, peer: Peer, limit_s: float) -> DrainView:
        """Give all nodes back within the limit, and take none until ``resume``."""

    def resume(self, peer: Peer) -> bool:
        """Take nodes again; False: this daemon is about to end, and the next one does."""

    def shutdown(self, peer: Peer, release: str = "") -> None:
        """Stop the daemon; trainers continue until their lease ends.

        Args:
            peer: who asks.
            release: all nodes first: "saved", after last checkpoints; "now", at once.
        """
