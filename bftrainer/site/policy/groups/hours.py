"""When nodes may be borrowed.

A key: ``name: type = _setting(default, unit, meaning, ge=.., le=..)``.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from pydantic import AfterValidator

from bftrainer.site.policy.calendar import check_window, check_zone
from bftrainer.site.policy.groups.setting import SettingsGroup, setting

_setting = partial(setting, "Hours")


class HourSettings(SettingsGroup):
    """When nodes may be borrowed."""

    blackouts: tuple[Annotated[str, AfterValidator(check_window)], ...] = _setting(
        (),
        "",
        "Times in which no nodes are borrowed; those that are held are given back by then, "
        "gap_margin_s before.",
        expects="a list of windows such as Mon-Fri 08:00-18:00, daily 23:00-01:00 or "
        "2026-12-24 12:00 to 2026-12-27 06:00",
        strict=False,
        max_length=1_000,
    )
    time_zone: Annotated[str, AfterValidator(check_zone)] | None = _setting(
        None,
        "",
        "Zone of blackouts and of the days of 'bftrainer account'; null: the machine's.",
        expects="the name of a time zone that this machine knows, such as Europe/Berlin, or null",
    )
