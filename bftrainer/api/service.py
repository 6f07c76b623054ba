"""What the daemon offers to its users: the protocol behind every API route.

``bftrainer.service`` implements ``Service``, ``bftrainer.api.server`` serves it. What it returns
is in ``bftrainer.model.views``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bftrainer.model.harm import HarmReport
from bftrainer.model.trainer import TrainerSpec
from bftrainer.model.views import Explanation, LogFile, NodeView, StatusView, TrainerView


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is asking, as the kernel says (SO_PEERCRED)."""

    uid: int
    user: str
    pid: int


class Service(Protocol):
    """Implemented by the daemon; raises ``BftError`` with codes 10xx and 11xx."""

    def status(self) -> StatusView:
        """Return the daemon's state."""

    def nodes(self) -> tuple[NodeView, ...]:
        """Return every node of the last snapshot."""

    def trainers(self) -> tuple[TrainerView, ...]:
        """Return all trainers in order of submission."""

    def trainer(self, trainer_id: str) -> TrainerView:
        """Return one trainer; BFT-1004 when there is none."""

    def explain(self, trainer_id: str) -> Explanation:
        """Say why it has this size or does not run."""

    def logs(self, trainer_id: str) -> tuple[LogFile, ...]:
        """Name its log files, oldest first; looks at users' files, so not in the loop."""

    def harm(self, since_s: float | None) -> HarmReport:
        """Sum up what ordinary jobs noticed since then; None: since ever."""

    def metrics(self) -> str:
        """Return everything in Prometheus' text format."""

    def submit(self, spec: TrainerSpec, peer: Peer) -> TrainerView:
        """Accept a trainer; durable before this returns."""

    def cancel(self, trainer_id: str, peer: Peer, *, now: bool = False) -> TrainerView:
        """End a trainer, after a checkpoint but for ``now``; BFT-1005: it is not the peer's."""

    def flush(self) -> None:
        """Wait until what was accepted is on disk, or cannot be; called beside the loop."""

    def shutdown(self, peer: Peer) -> None:
        """Stop the daemon; trainers keep running until their lease ends."""
