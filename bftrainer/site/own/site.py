"""What ``bftrainer up`` needs of a batch system, and how a plug-in for it is found.

Implemented by ``slurm_plugins.own_site``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from bftrainer.model.own_site import DaemonJob, OwnSite, Wish
from bftrainer.model.plugins import load_plugin

ENTRY_POINT_GROUP = "bftrainer.own_sites"


class OwnSites(Protocol):
    """A cluster as one user may use it."""

    def examine(self, wish: Wish) -> OwnSite:
        """Read the site; raise ``BftError`` (BFT-128x) where a daemon cannot work."""

    def submit_daemon(self, argv: Sequence[str], out: Path, wish: Wish) -> DaemonJob:
        """Run the daemon in a small batch job that is requeued when it ends before the daemon."""

    def find_daemon(self) -> DaemonJob | None:
        """Return that job, if there is one."""

    def cancel_daemon(self, job_id: str) -> None:
        """Cancel that job."""


def load(batch_system: str) -> OwnSites:
    """Return the plug-in of a batch system; BFT-1201 if there is none."""
    create = load_plugin(ENTRY_POINT_GROUP, batch_system, what="batch system", code="BFT-1201")
    found: OwnSites = create()
    return found
