"""Who may use it, and as whom trainers run.

docs/adr/0030-many-users.md says why.
"""

from __future__ import annotations

import enum
from functools import partial

from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Users")


class RunAs(enum.StrEnum):
    """As which Unix user pilots and workers run."""

    DAEMON = "daemon"
    SUBMITTER = "submitter"


class Visibility(enum.StrEnum):
    """What users see of the trainers of others."""

    ALL = "all"
    OWN = "own"


class UserSettings(SettingsGroup):
    """Who may use it, and as whom trainers run."""

    run_as: RunAs = _setting(
        RunAs.DAEMON,
        "",
        "As whom pilots and their workers run: as the daemon's user, who then is the only one to "
        "submit trainers, or as the user who submitted the trainer (docs/howto/slurm-site.md).",
        restart="Pilots of another user would have to be replaced.",
        strict=False,
    )
    visibility: Visibility = _setting(
        Visibility.ALL,
        "",
        "What users see of the trainers of others: names, users, sizes and progress (all), or "
        "only how many there are (own). Never environment, paths, parameters or logs.",
        strict=False,
    )

    @property
    def is_for_all(self) -> bool:
        """Whether users other than the daemon's may submit trainers."""
        return self.run_as is RunAs.SUBMITTER
