"""The differences between two policies, and their effect at a reload.

``bftrainer policy diff`` prints them, ``bftrainer.daemon.reload`` acts on them. Each setting
declares whether it needs a restart (``keys``).
"""

from __future__ import annotations

from bftrainer.model.views import SettingChange
from bftrainer.site.policy.model import SitePolicy
from bftrainer.site.policy.render import restart, yaml_value

MOST_CHARS = 200  # of a value: an option may be the content of a file


def changes(old: SitePolicy, new: SitePolicy) -> tuple[SettingChange, ...]:
    """Return the settings with other effective values, in the order of the reference."""
    changes: list[SettingChange] = []
    for name, before in old:
        after = getattr(new, name)
        if before != after:
            changes.append(
                SettingChange(
                    setting=name,
                    before=yaml_value(before)[:MOST_CHARS],
                    after=yaml_value(after)[:MOST_CHARS],
                    restart=restart(name),
                )
            )
    return tuple(changes)


def reloaded(old: SitePolicy, new: SitePolicy) -> SitePolicy:
    """Return the new policy, but for settings that need a restart: they stay as they were."""
    values_before = {name: value for name, value in old if restart(name)}
    return new.model_copy(update=values_before)
