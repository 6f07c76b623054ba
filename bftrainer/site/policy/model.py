"""Every setting of the policy, assembled from its groups; contradictions, and the hash.

The check of files, the JSON schema, the reference page and the commented default file follow from
it. The daemon and ``decide`` receive a ``SitePolicy`` as plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ConfigDict, model_validator

from bftrainer.model.canonical import digest
from bftrainer.site.policy.keys import (
    DaemonSettings,
    DecisionSettings,
    FairnessSettings,
    HourSettings,
    LogLevel,
    NetworkSettings,
    NodeSettings,
    OrdinaryJobSettings,
    PilotSettings,
    SiteObjective,
    TrainerSettings,
    UserSettings,
)

__all__ = [
    "REMOVED",
    "Conflict",
    "LogLevel",
    "SiteObjective",
    "SitePolicy",
    "conflicts",
    "policy_hash",
]


# Of several bases, the last one's fields come first: read from the bottom.
class SitePolicy(
    HourSettings,
    FairnessSettings,
    UserSettings,
    DaemonSettings,
    OrdinaryJobSettings,
    TrainerSettings,
    NetworkSettings,
    PilotSettings,
    NodeSettings,
    DecisionSettings,
):
    """The settings of a site's administrator; each has a default that works."""

    model_config = ConfigDict(title="bftrainer policy")

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if found := conflicts(dict(self)):
            raise ValueError(" ".join(f"{c.cause} {c.next_step}" for c in found))
        return self


# Settings of earlier releases → why there is none any more.
REMOVED = {
    "backfill_lead_s": "Nodes are given back at once: nobody foretells when backfill comes.",
    "rescale_down_guess_s": "Pauses are measured from the first one on.",
    "rescale_up_guess_s": "Pauses are measured from the first one on.",
    "skip_unstartable": "A trainer that cannot start never keeps others from running.",
    "straggler_memory_s": "A node found slow is tried again as before, in half an hour.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two settings that cannot both hold."""

    setting: str
    other: str
    cause: str
    next_step: str


def conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """Return the contradictions between settings; settings not in ``values`` are skipped."""
    found = []
    for setting, other, factor, why in (
        ("agent_timeout_s", "heartbeat_s", 2, "one late heartbeat would be taken for a loss"),
        ("lease_s", "agent_timeout_s", 1, "trainers would give up before the daemon missed them"),
    ):
        if {setting, other} <= values.keys() and values[setting] < factor * values[other]:
            found.append(
                Conflict(
                    setting=setting,
                    other=other,
                    cause=f"{setting} ({values[setting]:g}) is less than "
                    f"{'twice ' if factor == 2 else ''}{other} ({values[other]:g}): {why}.",
                    next_step=f"Set {setting} to at least {factor * values[other]:g}, "
                    f"or lower {other}.",
                )
            )
    return found


def policy_hash(policy: SitePolicy) -> str:
    """Return the sha256 of the effective values; part of every decision's input."""
    return digest({"type": "Policy", **policy.model_dump(mode="json")})
