"""Every setting of the policy, assembled from its groups; contradictions, and the hash.

The check of files, the JSON schema, the reference page and the commented default file follow from
it. The daemon receives a ``SitePolicy`` as plain data; ``settings_of`` makes of it and of the batch
system what decisions depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from pydantic import ConfigDict, model_validator

from bftrainer.batch.batch_system import BatchSystem
from bftrainer.model.canonical import digest
from bftrainer.model.decision import Settings
from bftrainer.model.fairness import Limits
from bftrainer.site.policy.keys import (
    ContainerSettings,
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
from milp.problem import Objective

__all__ = [
    "REMOVED",
    "Conflict",
    "LogLevel",
    "SiteObjective",
    "SitePolicy",
    "conflicts",
    "policy_hash",
]

# A setting, another one, how many times that it is at least, and why.
_LEAST_FACTORS = (
    ("agent_timeout_s", "heartbeat_s", 2, "one late heartbeat would be taken for a loss"),
    ("lease_s", "agent_timeout_s", 1, "trainers would give up before the daemon missed them"),
)
# Settings of earlier releases → why there is none any more.
REMOVED = {
    "backfill_lead_s": "Nodes are given back at once: nobody foretells when backfill comes.",
    "rescale_down_guess_s": "Pauses are measured from the first one on.",
    "rescale_up_guess_s": "Pauses are measured from the first one on.",
    "skip_unstartable": "A trainer that cannot start never keeps others from running.",
    "straggler_memory_s": "A node found slow is tried again as before, in half an hour.",
}


# Of several bases, the last one's fields come first: read from the bottom.
class SitePolicy(
    HourSettings,
    FairnessSettings,
    UserSettings,
    ContainerSettings,
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
        contradictions = conflicts(dict(self))
        if contradictions:
            sentences = [f"{conflict.cause} {conflict.next_step}" for conflict in contradictions]
            raise ValueError(" ".join(sentences))
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two settings that cannot both hold."""

    setting: str
    other: str
    cause: str
    next_step: str


def conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """Return the contradictions between settings; settings not in ``values`` are skipped."""
    contradictions: list[Conflict] = []
    for setting, other_setting, factor, why in _LEAST_FACTORS:
        if setting not in values or other_setting not in values:
            continue
        least_value = factor * values[other_setting]
        if values[setting] >= least_value:
            continue
        twice = "twice " if factor == 2 else ""
        contradictions.append(
            Conflict(
                setting=setting,
                other=other_setting,
                cause=f"{setting} ({values[setting]:g}) is less than "
                f"{twice}{other_setting} ({values[other_setting]:g}): {why}.",
                next_step=f"Set {setting} to at least {least_value:g}, or lower {other_setting}.",
            )
        )
    return contradictions


def policy_hash(policy: SitePolicy) -> str:
    """Return the sha256 of the effective values; part of every decision's input."""
    return digest({"type": "Policy", **policy.model_dump(mode="json")})


def settings_of(policy: SitePolicy, system: BatchSystem) -> Settings:
    """Return the decision's part of the policy; the batch system fills in defaults."""
    confirmations = policy.idle_confirmations
    if confirmations is None:
        confirmations = system.idle_confirmations
    return settings_on(policy, idle_confirmations=confirmations, cycle_s=system.cycle_s)


def settings_on(policy: SitePolicy, *, idle_confirmations: int, cycle_s: float) -> Settings:
    """Return them on a batch system with these properties.

    A key and a field of ``Settings`` with the same name are the same setting.
    """
    same_name = {}
    for field in fields(Settings):
        if field.name in SitePolicy.model_fields:
            same_name[field.name] = getattr(policy, field.name)
    differing = {
        "objective": Objective(policy.objective),
        "idle_confirmations": idle_confirmations,
        "cycle_s": cycle_s,
        "gives_back": policy.give_back,
        "eligible_node_types": tuple(policy.eligible_node_types or ()),
        "limits": Limits(
            by_user=policy.max_nodes_by_user,
            by_account=policy.max_nodes_by_account,
            by_partition=policy.max_nodes_by_partition,
            by_type=policy.max_nodes_by_type,
            share_of_idle=policy.max_share_of_idle,
        ),
        "expects_losses": True,
    }
    return Settings(**{**same_name, **differing})
