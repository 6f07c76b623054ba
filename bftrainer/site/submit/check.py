"""Whether a daemon may let pilots run as the submitting user. Called before it starts."""

from __future__ import annotations

import os

from bftrainer.batch.batch_system import BatchSystem
from bftrainer.model.errors import BftError, ExitCode
from bftrainer.site.policy.model import SitePolicy
from bftrainer.site.submit.client import no_helper


def check_run_as(policy: SitePolicy, system: BatchSystem, *, is_own: bool) -> None:
    """Refuse a daemon that could not do so, or would have more rights than it needs.

    Args:
        policy: of the site.
        system: where pilots run.
        is_own: whether it is a user's own daemon (``bftrainer up``).

    Raises:
        BftError: BFT-1521, BFT-1522.
    """
    if not policy.is_for_all:
        return
    if not system.runs_as_users:
        raise no_helper()
    if is_own or os.geteuid() == 0:
        who = "a user's own daemon serves one user" if is_own else "it would be root's"
        raise BftError(
            "BFT-1522",
            f"This daemon cannot have 'run_as: submitter': {who}.",
            "Run the site's daemon as an account of its own (docs/howto/slurm-site.md).",
            exit_code=ExitCode.USAGE,
        )
