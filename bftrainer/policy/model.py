"""Every setting of the policy, declared once: type, default, bounds, unit, meaning.

From here come the check of files, the JSON schema, the reference page and the
commented default file. The daemon and ``decide`` receive a ``SitePolicy`` as plain data.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from bftrainer.canonical import digest
from milp.problem import Objective


class SiteObjective(enum.StrEnum):
    """What a site may maximise: what follows from the curves every trainer has."""

    THROUGHPUT = Objective.THROUGHPUT.value
    SCALING_EFFICIENCY = Objective.SCALING_EFFICIENCY.value
    WEIGHTED = Objective.WEIGHTED.value


class LogLevel(enum.StrEnum):
    """Levels of the daemon's log, most talkative first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def _setting(default: Any, group: str, unit: str, meaning: str, **bounds: Any) -> Any:
    return Field(
        default=default,
        description=meaning,
        json_schema_extra={"unit": unit, "group": group},
        **bounds,
    )


_NodeType = Annotated[str, Field(min_length=1, max_length=255)]
_DECISION, _NODES, _PILOTS = "Decision", "Nodes", "Pilots and agents"
_TRAINERS, _DAEMON = "Trainers", "Daemon"
_HARM = "Ordinary jobs"


class SitePolicy(BaseModel):
    """What the administrator decides; every setting has a default that works."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, title="bftrainer policy"
    )

    policy: str = _setting(
        "milp",
        _DECISION,
        "",
        "The allocation policy: milp (the exact optimum), equal-share, fcfs-greedy, "
        "no-rescale (jobs of fixed sizes, for comparison), another published one "
        "(docs/policies), or a plug-in of this site.",
        pattern=r"^[a-z][a-z0-9-]{0,63}$",
    )
    policy_options: dict[str, JsonValue] = _setting(
        {},
        _DECISION,
        "",
        "Options of the allocation policy, by name (docs/policies); milp has none.",
    )
    objective: SiteObjective = _setting(
        SiteObjective.SCALING_EFFICIENCY,
        _DECISION,
        "",
        "What is maximised over all trainers: samples per second, the same relative to each "
        "trainer's own on one node, or that times the trainer's weight.",
        strict=False,
    )
    t_fwd_s: float = _setting(
        120.0,
        _DECISION,
        "s",
        "Forward-looking time: a rescale must pay back within this (docs/design/estimators.md).",
        ge=1,
        le=86_400,
    )
    p_jmax: int = _setting(
        10,
        _DECISION,
        "trainers",
        "At most this many trainers run at once, the first submitted first.",
        ge=1,
        le=1_000,
    )
    skip_unstartable: bool = _setting(
        default=True,
        group=_DECISION,
        unit="",
        meaning="A trainer whose n_min exceeds the nodes that it could have if it were alone "
        "does not count for p_jmax; false: it does, and those behind it wait, as in "
        "the paper.",
    )
    rescale_up_guess_s: float = _setting(
        0.5,
        _DECISION,
        "s",
        "Assumed pause of a grow until it is measured for the trainer.",
        ge=0,
        le=3_600,
    )
    rescale_down_guess_s: float = _setting(
        0.2,
        _DECISION,
        "s",
        "Assumed pause of a shrink until it is measured for the trainer.",
        ge=0,
        le=3_600,
    )
    explore_budget: float = _setting(
        0.02,
        _DECISION,
        "share",
        "Share of the objective that a decision may forgo so that a trainer that rescales "
        "anyway goes to a size of unknown throughput; 0: never (docs/design/estimators.md).",
        ge=0,
        le=0.5,
    )
    straggler_threshold: float = _setting(
        0.8,
        _DECISION,
        "of the others",
        "A node whose average throughput is below this fraction of that of its trainer's "
        "other nodes is replaced where that pays; 0: never (docs/design/estimators.md).",
        ge=0,
        le=0.99,
    )
    straggler_memory_s: float = _setting(
        1_800.0,
        _DECISION,
        "s",
        "A node found slow is taken to be half as slow after this long, so that it is tried again.",
        ge=1,
        le=2_592_000,
    )
    reserve_nodes_per_type: int = _setting(
        1,
        _NODES,
        "nodes",
        "Idle nodes of each type that are never borrowed, so that jobs that start at once or "
        "not at all still start (docs/design/give-back.md).",
        ge=0,
        le=100_000,
    )
    eligible_node_types: tuple[_NodeType, ...] | None = _setting(
        None,
        _NODES,
        "",
        "Types of nodes that may be borrowed; null: all.",
        min_length=1,
        strict=False,
    )
    idle_confirmations: int | None = _setting(
        None,
        _NODES,
        "snapshots",
        "Snapshots in a row in which a node must be idle before it is used; null: 1 on Slurm and "
        "LSF, 2 on local and traces.",
        ge=1,
        le=100,
    )
    min_gap_s: float = _setting(
        120.0,
        _NODES,
        "s",
        "Nodes that a planned job or reservation takes sooner than this plus gap_margin_s are "
        "left alone (docs/design/give-back.md).",
        ge=0,
        le=604_800,
    )
    gap_margin_s: float = _setting(
        60.0,
        _NODES,
        "s",
        "A pilot is gone at least this long before the planned start of the next job on its node.",
        ge=0,
        le=86_400,
    )
    max_nodes: int | None = _setting(
        None,
        _PILOTS,
        "nodes",
        "At most this many nodes are held or requested at once; null: no limit.",
        ge=1,
        le=100_000,
    )
    pilot_time_limit_s: float = _setting(
        14_400.0,
        _PILOTS,
        "s",
        "Longest time limit of a pilot; it is shorter where the gap is.",
        ge=10,
        le=2_592_000,
    )
    hold_idle_s: float = _setting(
        5.0,
        _PILOTS,
        "s",
        "A held node that no trainer uses for this long is released.",
        ge=0,
        le=86_400,
    )
    heartbeat_s: float = _setting(
        0.5,
        _PILOTS,
        "s",
        "Interval of an agent's heartbeats.",
        ge=0.05,
        le=60,
    )
    agent_timeout_s: float = _setting(
        5.0,
        _PILOTS,
        "s",
        "An agent silent for this long is lost; at least twice heartbeat_s.",
        ge=0.1,
        le=3_600,
    )
    lease_s: float = _setting(
        1_800.0,
        _PILOTS,
        "s",
        "Without a daemon for this long, trainers write a checkpoint and release their nodes; "
        "at least agent_timeout_s.",
        ge=1,
        le=604_800,
    )
    join_window_s: float = _setting(
        1.0,
        _TRAINERS,
        "s",
        "The first warm joiner waits this long for others that are warming up, so that the "
        "trainer pauses once for all.",
        ge=0,
        le=600,
    )
    start_timeout_s: float = _setting(
        120.0,
        _TRAINERS,
        "s",
        "A worker that is not warm after this long is given up.",
        ge=1,
        le=86_400,
    )
    max_nodes_per_trainer: int | None = _setting(
        None,
        _TRAINERS,
        "nodes",
        "No trainer gets more nodes than this, whatever its n_max; null: no limit.",
        ge=1,
        le=100_000,
    )
    max_trainers: int | None = _setting(
        None,
        _TRAINERS,
        "trainers",
        "Submissions beyond this many unfinished trainers are refused; null: no limit.",
        ge=1,
        le=1_000_000,
    )
    max_trainers_per_user: int = _setting(
        200,
        _TRAINERS,
        "trainers",
        "The same for each user.",
        ge=1,
        le=1_000_000,
    )
    submissions_per_minute_per_user: int = _setting(
        120,
        _TRAINERS,
        "submissions",
        "Submissions of a user beyond this many within a minute are refused.",
        ge=1,
        le=100_000,
    )
    worker_lease_s: float = _setting(
        10.0,
        _TRAINERS,
        "s",
        "A worker whose process does not answer its agent for this long (stopped, swapped "
        "out) is killed.",
        ge=0.5,
        le=3_600,
    )
    no_progress_s: float = _setting(
        1_800.0,
        _TRAINERS,
        "s",
        "A trainer without a step for this long forms its generation anew, and a worker that "
        "does not take part is killed; 0: never.",
        ge=0,
        le=604_800,
    )
    failure_budget: int = _setting(
        5,
        _TRAINERS,
        "failures",
        "A trainer that fails this many times in a row without progress has failed "
        "(docs/design/elastic-runtime.md).",
        ge=1,
        le=10_000,
    )
    quarantine_s: float = _setting(
        10.0,
        _TRAINERS,
        "s",
        "A node on which workers fail twice in a row while their trainers do well elsewhere "
        "is offered to no trainer for this long, twice as long each time, at most half an "
        "hour; 0: never (docs/design/elastic-runtime.md).",
        ge=0,
        le=1_800,
    )
    rescale_budget: int | None = _setting(
        None,
        _TRAINERS,
        "per hour",
        "A trainer that was given other or more nodes this many times within an hour keeps "
        "those it has; losses, releases and nodes needed for its n_min do not count; null: no "
        "limit.",
        ge=1,
        le=10_000,
    )
    give_back: bool = _setting(
        default=True,
        group=_HARM,
        unit="",
        meaning="Nodes that ordinary jobs could use are released before the batch system has to "
        "preempt pilots; false: only preemption and time limits take them, nothing is promised "
        "and the daemon never backs off, as for a user's own daemon (docs/howto/own-daemon.md).",
    )
    harm_slo_s: float = _setting(
        1.0,
        _HARM,
        "s",
        "The promise: a node that an ordinary job gets from us is free this soon after the "
        "request (docs/design/give-back.md).",
        ge=0.001,
        le=3_600,
    )
    harm_slo_share: float = _setting(
        0.95,
        _HARM,
        "of the nodes",
        "The share of nodes for which that is promised; if it is not kept, the daemon backs off.",
        ge=0.5,
        le=1,
    )
    harm_quiet_s: float = _setting(
        1_800.0,
        _HARM,
        "s",
        "The daemon backs off one level less after this long with good hand-overs only.",
        ge=1,
        le=2_592_000,
    )
    poll_interval_s: float = _setting(
        1.0,
        _DAEMON,
        "s",
        "Interval of polls.",
        ge=0.05,
        le=3_600,
    )
    poll_interval_with_hook_s: float = _setting(
        30.0,
        _DAEMON,
        "s",
        "Interval of polls with the hook; each burst of its lines is followed by one poll.",
        ge=0.05,
        le=3_600,
    )
    requests_per_minute: int = _setting(
        130,
        _DAEMON,
        "requests",
        "Requests to the controller per minute, of all polls together; submitting and "
        "cancelling pilots is never delayed, the polls after it are "
        "(docs/howto/slurm-site.md).",
        ge=1,
        le=100_000,
    )
    requests_per_minute_with_hook: int = _setting(
        12,
        _DAEMON,
        "requests",
        "With the hook: requests of the polls that nothing called for.",
        ge=1,
        le=100_000,
    )
    batch_options: dict[str, JsonValue] = _setting(
        {},
        _DAEMON,
        "",
        "Options of the batch system, by name (docs/howto/slurm-site.md, docs/howto/lsf-site.md); "
        "--batch-option on the command line comes first.",
    )
    journal_days: int = _setting(
        30,
        _DAEMON,
        "days",
        "The journal keeps entries, and trainers that have ended, for at least this long; "
        "reports and replays reach no further back.",
        ge=2,
        le=36_500,
    )
    log_level: LogLevel = _setting(
        LogLevel.INFO,
        _DAEMON,
        "",
        "How much the daemon logs.",
        strict=False,
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if found := conflicts(dict(self)):
            raise ValueError(" ".join(f"{c.cause} {c.next_step}" for c in found))
        return self


# Settings of earlier releases → why there is none any more.
REMOVED = {
    "backfill_lead_s": "Nodes are given back at once: nobody foretells when backfill comes.",
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
