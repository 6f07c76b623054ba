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
        "Rule that turns a problem into an allocation: milp (the exact optimum), equal-share, "
        "fcfs-greedy, no-rescale (jobs of fixed sizes, to compare), or a plug-in of this site.",
        pattern=r"^[a-z][a-z0-9-]{0,63}$",
    )
    policy_options: dict[str, JsonValue] = _setting(
        {},
        _DECISION,
        "",
        "Options of that rule, by name; those that come with bftrainer have none "
        "(docs/reference/policy-plugins.md).",
    )
    objective: SiteObjective = _setting(
        SiteObjective.SCALING_EFFICIENCY,
        _DECISION,
        "",
        "What the rule maximises over all trainers: samples per second as they are, relative "
        "to each trainer's own on one node, or that times the trainer's weight.",
        strict=False,
    )
    t_fwd_s: float = _setting(
        120.0,
        _DECISION,
        "s",
        "Forward-looking time: a rescale is worth it when it pays back within this "
        "(docs/forward-time.md).",
        ge=1,
        le=86_400,
    )
    p_jmax: int = _setting(
        10,
        _DECISION,
        "trainers",
        "At most this many trainers run at once; the first submitted come first.",
        ge=1,
        le=1_000,
    )
    skip_unstartable: bool = _setting(
        default=True,
        group=_DECISION,
        unit="",
        meaning="A trainer that could not start even if it were alone, because the pool has too "
        "few nodes for its n_min, does not count for p_jmax; false: it does, and those behind "
        "it wait, as in the paper.",
    )
    rescale_up_guess_s: float = _setting(
        0.5,
        _DECISION,
        "s",
        "What a grow is assumed to cost until it was measured for the trainer.",
        ge=0,
        le=3_600,
    )
    rescale_down_guess_s: float = _setting(
        0.2,
        _DECISION,
        "s",
        "What a shrink is assumed to cost until it was measured for the trainer.",
        ge=0,
        le=3_600,
    )
    explore_budget: float = _setting(
        0.02,
        _DECISION,
        "share",
        "The share of the objective that a decision may forgo so that a trainer which is "
        "rescaled anyway goes to a size whose throughput is not known yet; 0: never "
        "(docs/profiler.md).",
        ge=0,
        le=0.5,
    )
    straggler_threshold: float = _setting(
        0.8,
        _DECISION,
        "of the others",
        "A node whose throughput is on average below this fraction of that of the others of its "
        "trainer is replaced when a better one is there and it pays; 0: never "
        "(docs/stragglers.md).",
        ge=0,
        le=0.99,
    )
    straggler_memory_s: float = _setting(
        1_800.0,
        _DECISION,
        "s",
        "A node found slow is taken to be half as slow after this long, so that it is tried "
        "again some time.",
        ge=1,
        le=2_592_000,
    )
    reserve_nodes_per_type: int = _setting(
        1,
        _NODES,
        "nodes",
        "Idle nodes of each type that are never borrowed, so that jobs which start at once or "
        "not at all still start (docs/gaps.md).",
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
        "Snapshots in a row in which a node must be idle before it is used; null: what suits "
        "the batch system (1 on Slurm, 2 on local and traces).",
        ge=1,
        le=100,
    )
    min_gap_s: float = _setting(
        120.0,
        _NODES,
        "s",
        "Idle nodes that a planned job or reservation will take sooner than this, and "
        "gap_margin_s, are left alone (docs/gaps.md).",
        ge=0,
        le=604_800,
    )
    gap_margin_s: float = _setting(
        60.0,
        _NODES,
        "s",
        "We are off a node at least this long before the planned start of the next job on it: "
        "a pilot's time limit ends by then, and a pilot is released when a plan moves over it.",
        ge=0,
        le=86_400,
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
        "A held node that no trainer uses for this long is given back.",
        ge=0,
        le=86_400,
    )
    heartbeat_s: float = _setting(
        0.5,
        _PILOTS,
        "s",
        "Time between two signs of life of an agent.",
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
        "Trainers whose daemon stays away for this long write a checkpoint and give their "
        "nodes back; at least agent_timeout_s.",
        ge=1,
        le=604_800,
    )
    join_window_s: float = _setting(
        1.0,
        _TRAINERS,
        "s",
        "The first warm joiner waits this long for others that are warming up, so that the "
        "trainer pauses once for all of them.",
        ge=0,
        le=600,
    )
    start_timeout_s: float = _setting(
        120.0,
        _TRAINERS,
        "s",
        "A worker that has not started and warmed up within this is given up.",
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
        "Submissions of a user who has this many unfinished trainers are refused.",
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
        "does not take part in that is killed; 0: never.",
        ge=0,
        le=604_800,
    )
    failure_budget: int = _setting(
        5,
        _TRAINERS,
        "failures",
        "A trainer that fails this many times in a row without getting any further is given up "
        "(docs/reference/failures.md).",
        ge=1,
        le=10_000,
    )
    quarantine_s: float = _setting(
        10.0,
        _TRAINERS,
        "s",
        "A node on which workers fail twice in a row while their trainers do well elsewhere is "
        "offered to no trainer for this long, then twice as long each time, up to half an hour; "
        "0: never (docs/reference/failures.md).",
        ge=0,
        le=1_800,
    )
    rescale_budget: int | None = _setting(
        None,
        _TRAINERS,
        "per hour",
        "A trainer that was given other or more nodes this many times within an hour keeps "
        "those it has until that is less; nodes it loses, is to give back or needs for its "
        "n_min do not count; null: no limit.",
        ge=1,
        le=10_000,
    )
    harm_slo_s: float = _setting(
        1.0,
        _HARM,
        "s",
        "A node that an ordinary job gets from us is free this soon after we, or the batch "
        "system, asked for it (docs/harm.md).",
        ge=0.001,
        le=3_600,
    )
    harm_slo_share: float = _setting(
        0.95,
        _HARM,
        "of the nodes",
        "The share of nodes for which that is promised; when it is not kept, the daemon backs "
        "off: it holds fewer nodes, for longer none just given back, and a larger reserve.",
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
        "Time between two looks at the batch system.",
        ge=0.05,
        le=3_600,
    )
    poll_interval_with_hook_s: float = _setting(
        30.0,
        _DAEMON,
        "s",
        "The same where the batch system tells of submitted and ended jobs by itself; each "
        "burst of them is followed by one look.",
        ge=0.05,
        le=3_600,
    )
    requests_per_minute: int = _setting(
        130,
        _DAEMON,
        "requests",
        "What all looks together may ask of the batch system's controller in a minute; pilots "
        "submitted and cancelled are never delayed, the looks after them are (docs/slurm.md).",
        ge=1,
        le=100_000,
    )
    requests_per_minute_with_hook: int = _setting(
        12,
        _DAEMON,
        "requests",
        "The same for looks that nothing called for, where the batch system tells of submitted "
        "and ended jobs by itself.",
        ge=1,
        le=100_000,
    )
    batch_options: dict[str, JsonValue] = _setting(
        {},
        _DAEMON,
        "",
        "Options of the batch system, by name; which there are says its own page "
        "(docs/slurm.md). --batch-option on the command line comes before them.",
    )
    journal_days: int = _setting(
        30,
        _DAEMON,
        "days",
        "The journal keeps entries, and trainers that have ended, for at least this long: reports "
        "and replays reach no further back (docs/adr/0016).",
        ge=2,
        le=36_500,
    )
    log_level: LogLevel = _setting(
        LogLevel.INFO,
        _DAEMON,
        "",
        "How much the daemon writes to its log.",
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
    return digest({"type": "SitePolicy", **policy.model_dump(mode="json")})
