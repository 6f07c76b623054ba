"""How one setting is declared: heading, default, unit, meaning, bounds, when it takes effect."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class SettingsGroup(BaseModel):
    """Some settings of one subject; frozen, and no others than those declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def setting(
    group: str,
    default: Any,
    unit: str,
    meaning: str,
    *,
    restart: str = "",
    expects: str = "",
    **bounds: Any,
) -> Any:
    """Return the declaration of a setting.

    Args:
        group: the heading under which it is described.
        default: the value that works where nothing is known of the site.
        unit: of the value; "": it has none.
        meaning: one sentence for the reference.
        expects: what it accepts, in words; "": its type and bounds say so.
        restart: why a reload cannot change it; "": it can.
        bounds: of the value, as ``pydantic.Field`` takes them.
    """
    extra: dict[str, Any] = {"unit": unit, "group": group}
    if restart:
        extra["restart"] = restart
    if expects:
        extra["expects"] = expects
    return Field(default=default, description=meaning, json_schema_extra=extra, **bounds)
