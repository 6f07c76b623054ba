"""A look at the Slurm site that runs here, for ``bftrainer whatif``: which GPUs it could lend.

Where no slurmctld answers, as on a laptop that has a log only, there is nothing to say.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from bftrainer.cli.site import ask_policy, opened
from bftrainer.model.errors import BftError

if TYPE_CHECKING:
    from bftrainer.lab.whatif.present import LendingNow

PING = ("scontrol", "ping")
PING_TIMEOUT_S = 10.0
IS_UP = " UP"
SLURM = "slurm"


def look_at_lending() -> LendingNow | None:
    """Return what the site could lend one by one now; None: nothing, or it cannot be seen."""
    from bftrainer.lab.whatif.present import lending_now  # noqa: PLC0415 - numpy takes 0.1 s

    if not _is_slurm_here():
        return None
    # The question is about a log: what hinders the look is doctor's to tell.
    with suppress(BftError):
        status, judged = ask_policy(None, SLURM, None)
        pairs = status.batch_pairs if status is not None else ()
        with opened(SLURM, judged.files, pairs) as (system, policy):
            nodes = system.snapshot(wants_cycle=False).nodes or ()
            return lending_now(nodes, policy.lend)
    return None


def _is_slurm_here() -> bool:
    from bftrainer.batch import process  # noqa: PLC0415 - -h needs none of it

    answer = process.run(PING, timeout_s=PING_TIMEOUT_S)
    return answer.is_ok and IS_UP in answer.stdout
