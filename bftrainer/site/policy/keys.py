"""Every key of the policy, in groups; ``model`` assembles them.

A key: ``name: type = _group(default, unit, meaning, ge=.., le=..)``, by the function of its group.
The reasons for the keys of ``UserSettings`` are in docs/adr/0030-many-users.md.
"""

from __future__ import annotations

import enum
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

from bftrainer.batch.addresses import check_network
from bftrainer.ground.ports import check_ports
from bftrainer.model.container import AUTO, RUNTIMES, check_mounts, check_runtime
from bftrainer.model.parts import Lend
from bftrainer.site.policy.calendar import check_window, check_zone
from milp.problem import Objective

_NETWORK = "a network such as 10.0.0.0/8 or fd00::/8, the name of an interface such as ib0, or null"
_AT_START = "Pilots that run were told of the one before."
_TOGETHER = "Agents learn heartbeat_s and lease_s when they connect, and agent_timeout_s fits them."


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


_daemon = partial(setting, "Daemon")


class LogLevel(enum.StrEnum):
    """Levels of the daemon's log, most talkative first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class DaemonSettings(SettingsGroup):
    """Settings of the daemon: polls, requests, journal, log."""

    poll_interval_s: float = _daemon(
        1.0,
        "s",
        "Interval of polls.",
        ge=0.05,
        le=3_600,
    )
    poll_interval_with_hook_s: float = _daemon(
        30.0,
        "s",
        "Interval of polls with the hook; one more follows each burst of its lines.",
        ge=0.05,
        le=3_600,
    )
    requests_per_minute: int = _daemon(
        130,
        "requests",
        "Requests to the controller per minute, of all polls together. Submitting and cancelling "
        "pilots is never delayed, the polls after it are (docs/howto/slurm-site.md).",
        ge=1,
        le=100_000,
    )
    requests_per_minute_with_hook: int = _daemon(
        12,
        "requests",
        "With the hook: requests of the polls that nothing called for.",
        ge=1,
        le=100_000,
    )
    batch_options: dict[str, JsonValue] = _daemon(
        {},
        "",
        "Options of the batch system, by name (docs/howto/slurm-site.md, docs/howto/lsf-site.md).",
        restart="The connection to the batch system is made with them.",
    )
    journal_days: int = _daemon(
        30,
        "days",
        "The journal keeps entries, and trainers that have ended, for at least this long; 'report "
        "harm' and replays reach no further back.",
        ge=2,
        le=36_500,
    )
    log_level: LogLevel = _daemon(
        LogLevel.INFO,
        "",
        "How much the daemon logs.",
        strict=False,
    )


_decision = partial(setting, "Decision")


class SiteObjective(enum.StrEnum):
    """Objectives that a site may maximise: those that follow from every trainer's curve."""

    THROUGHPUT = Objective.THROUGHPUT.value
    SCALING_EFFICIENCY = Objective.SCALING_EFFICIENCY.value
    WEIGHTED = Objective.WEIGHTED.value


class DecisionSettings(SettingsGroup):
    """Settings of decisions: the policy, its objective, the assumptions."""

    policy: str = _decision(
        "milp",
        "",
        "The allocation policy: milp (the exact optimum), another published one (docs/policies), "
        "or a plug-in of this site.",
        pattern=r"^[a-z][a-z0-9-]{0,63}$",
    )
    policy_options: dict[str, JsonValue] = _decision(
        {},
        "",
        "Options of the allocation policy, by name; milp has none.",
    )
    objective: SiteObjective = _decision(
        SiteObjective.SCALING_EFFICIENCY,
        "",
        "What is maximised over all trainers: samples per second, the same relative to each "
        "trainer's own on one node, or that times the trainer's weight.",
        strict=False,
    )
    t_fwd_s: float = _decision(
        120.0,
        "s",
        "Forward-looking time: a rescale must pay back within this (docs/design/estimators.md).",
        ge=1,
        le=86_400,
    )
    p_jmax: int = _decision(
        10,
        "trainers",
        "At most this many trainers run at once, the first submitted first.",
        ge=1,
        le=1_000,
    )
    explore_budget: float = _decision(
        0.02,
        "share",
        "Share of the objective that a decision may forgo so that a trainer that rescales anyway "
        "tries a size of unknown throughput; 0: never (docs/design/estimators.md).",
        ge=0,
        le=0.5,
    )
    straggler_threshold: float = _decision(
        0.8,
        "of the others",
        "A node whose throughput is below this fraction of that of its trainer's other nodes is "
        "replaced where that pays; 0: never (docs/design/estimators.md).",
        ge=0,
        le=0.99,
    )


_fairness = partial(setting, "Fairness")
_Name = Annotated[str, Field(min_length=1, max_length=255)]
_Nodes = Annotated[int, Field(ge=0, le=100_000)]


class FairnessSettings(SettingsGroup):
    """Settings of the sharing of nodes among users and accounts."""

    fair_share_half_life_s: float | None = _fairness(
        None,
        "s",
        "Fair share: the account, then the user with the fewest node-seconds comes first; "
        "node-seconds halve in this time (docs/design/fair-share.md). null: first come, first "
        "served.",
        ge=60,
        le=31_536_000,
    )
    max_wait_s: float | None = _fairness(
        None,
        "s",
        "A trainer that could run and has waited so long gets its n_min nodes for as long, "
        "whatever the allocation policy prefers; at most half of p_jmax at once; null: no bound.",
        ge=60,
        le=31_536_000,
    )
    max_nodes_by_user: dict[_Name, _Nodes] = _fairness(
        {},
        "nodes",
        'Most nodes at once for the trainers of a user; "*": of each user who is not named; {}: no '
        "limit.",
    )
    max_nodes_by_account: dict[_Name, _Nodes] = _fairness(
        {},
        "nodes",
        "The same for an account (bftrainer submit --account).",
    )
    max_nodes_by_partition: dict[_Name, _Nodes] = _fairness(
        {},
        "nodes",
        "Most nodes of a partition that are held or requested at once.",
    )
    max_nodes_by_type: dict[_Name, _Nodes] = _fairness(
        {},
        "nodes",
        "The same for a type of nodes.",
    )
    max_share_of_idle: float = _fairness(
        1.0,
        "of the nodes",
        "Largest share of the nodes of each type without an ordinary job that is borrowed.",
        ge=0,
        le=1,
    )


_hours = partial(setting, "Hours")


class HourSettings(SettingsGroup):
    """Hours at which nodes may be borrowed."""

    blackouts: tuple[Annotated[str, AfterValidator(check_window)], ...] = _hours(
        (),
        "",
        "Times in which no nodes are borrowed; held ones are given back gap_margin_s before.",
        expects="a list of windows such as Mon-Fri 08:00-18:00, daily 23:00-01:00 or "
        "2026-12-24 12:00 to 2026-12-27 06:00",
        strict=False,
        max_length=1_000,
    )
    time_zone: Annotated[str, AfterValidator(check_zone)] | None = _hours(
        None,
        "",
        "Zone of blackouts and of the days of 'bftrainer account'; null: the machine's.",
        expects="the name of a time zone that this machine knows, such as Europe/Berlin, or null",
    )


_network = partial(setting, "Network")
Network = Annotated[str, AfterValidator(check_network)]


class NetworkSettings(SettingsGroup):
    """Networks and ports that are used between hosts."""

    control_network: Network | None = _network(
        None,
        "",
        "The network or interface of the daemon's host at which agents reach it; null: any "
        "(docs/howto/slurm-site.md).",
        expects=_NETWORK,
        restart=_AT_START,
    )
    training_network: Network | None = _network(
        None,
        "",
        "The network or interface of the nodes by which workers reach each other; null: that of "
        "the node's route to the daemon.",
        expects=_NETWORK,
        restart=_AT_START,
    )
    ports: Annotated[str, AfterValidator(check_ports)] | None = _network(
        None,
        "",
        "Ports at which the daemon, agents, and the stores by which workers find each other "
        "listen; null: any. Gloo, NCCL and MPI choose from the kernel's range ('bftrainer doctor "
        "--firewall').",
        expects="a range such as 41000-41100, or null",
        restart=_AT_START,
    )


_nodes = partial(setting, "Nodes")
_NodeType = Annotated[str, Field(min_length=1, max_length=255)]


class NodeSettings(SettingsGroup):
    """Idle nodes that may be borrowed."""

    lend: Lend = _nodes(
        Lend.NODES,
        "",
        "What is lent: GPUs one by one where ordinary jobs share a node, and other nodes as a "
        "whole (auto); whole nodes alone (nodes); or GPUs alone (gpus, docs/howto/slurm-site.md).",
        strict=False,
    )
    reserve_nodes_per_type: int = _nodes(
        1,
        "nodes",
        "Idle nodes of each type that are never borrowed, for jobs that start at once or not at "
        "all (docs/design/give-back.md).",
        ge=0,
        le=100_000,
    )
    eligible_node_types: tuple[_NodeType, ...] | None = _nodes(
        None,
        "",
        "Types of nodes that may be borrowed; null: all.",
        min_length=1,
        strict=False,
    )
    idle_confirmations: int | None = _nodes(
        None,
        "snapshots",
        "Snapshots in a row in which a node must be idle before it is used; null: 1 on Slurm and "
        "LSF, 2 on local and traces.",
        ge=1,
        le=100,
    )
    min_gap_s: float = _nodes(
        120.0,
        "s",
        "Nodes that a planned job or reservation takes sooner than this plus gap_margin_s are left "
        "alone (docs/design/give-back.md).",
        ge=0,
        le=604_800,
    )
    gap_margin_s: float = _nodes(
        60.0,
        "s",
        "A pilot is gone this long before the planned start of the next job on its node.",
        ge=0,
        le=86_400,
    )
    watts_per_node_type: dict[_NodeType, Annotated[float, Field(gt=0, le=1e6)]] = _nodes(
        {},
        "W",
        "Power of a node of each type under load, for the energy in 'bftrainer account'.",
        expects="a mapping of types to numbers above 0, to 1000000",
    )


_ordinary_jobs = partial(setting, "Ordinary jobs")


class OrdinaryJobSettings(SettingsGroup):
    """Promises to ordinary jobs."""

    give_back: bool = _ordinary_jobs(
        default=True,
        unit="",
        meaning="Nodes that ordinary jobs could use are released before pilots have to be "
        "preempted. false: only preemption and time limits take them, nothing is promised, and the "
        "daemon never backs off (docs/howto/own-daemon.md).",
    )
    harm_slo_s: float = _ordinary_jobs(
        1.0,
        "s",
        "The promise: a node that an ordinary job gets from us is free this soon after the "
        "request; a job that loses a scheduler cycle by having to preempt breaks it "
        "(docs/design/give-back.md).",
        ge=0.001,
        le=3_600,
    )
    harm_slo_share: float = _ordinary_jobs(
        0.95,
        "of the nodes",
        "The share of nodes for which that is promised; if it is not kept, the daemon backs off.",
        ge=0.5,
        le=1,
    )
    harm_quiet_s: float = _ordinary_jobs(
        1_800.0,
        "s",
        "The daemon backs off one level less after this long with the promise kept.",
        ge=1,
        le=2_592_000,
    )


_pilots = partial(setting, "Pilots and agents")


class PilotSettings(SettingsGroup):
    """Settings of pilots, which hold nodes, and of the agents in them."""

    pilots_dir: str | None = _pilots(
        None,
        "",
        "Absolute path that all nodes see, for the files of pilots that run as the daemon's user; "
        "null: pilots in the state directory (docs/howto/slurm-site.md).",
        pattern=r"^/",
        max_length=4096,
        restart="Pilots find their files there.",
    )
    max_nodes: int | None = _pilots(
        None,
        "nodes",
        "Most nodes that are held or requested at once; null: no limit.",
        ge=1,
        le=100_000,
    )
    pilot_time_limit_s: float = _pilots(
        14_400.0,
        "s",
        "Longest time limit of a pilot; it is shorter where the gap is.",
        ge=10,
        le=2_592_000,
    )
    hold_idle_s: float = _pilots(
        5.0,
        "s",
        "A held node without a trainer for this long is released.",
        ge=0,
        le=86_400,
    )
    heartbeat_s: float = _pilots(
        0.5,
        "s",
        "Interval of an agent's heartbeats.",
        ge=0.05,
        le=60,
        restart=_TOGETHER,
    )
    agent_timeout_s: float = _pilots(
        5.0,
        "s",
        "An agent silent for this long is lost; at least twice heartbeat_s.",
        ge=0.1,
        le=3_600,
        restart=_TOGETHER,
    )
    unreachable_s: float = _pilots(
        300.0,
        "s",
        "The pilot of an agent that was lost without a word is cancelled after this long. Trainers "
        "go on without its node, and ordinary jobs get it, at once.",
        ge=0,
        le=604_800,
    )
    lease_s: float = _pilots(
        1_800.0,
        "s",
        "Without a daemon for this long, trainers write a checkpoint and release their nodes; at "
        "least agent_timeout_s.",
        ge=1,
        le=604_800,
        restart=_TOGETHER,
    )


_trainers = partial(setting, "Trainers")


class TrainerSettings(SettingsGroup):
    """Limits of trainers, and the signs that one of them is in trouble."""

    join_window_s: float = _trainers(
        1.0,
        "s",
        "The first warm joiner waits this long for others, so that the trainer pauses once for "
        "all.",
        ge=0,
        le=600,
    )
    start_timeout_s: float = _trainers(
        120.0,
        "s",
        "A worker that is not warm after this long has failed; the next one of its trainer has "
        "twice as long, up to 32 times this value.",
        ge=1,
        le=86_400,
    )
    max_nodes_per_trainer: int | None = _trainers(
        None,
        "nodes",
        "Most nodes of a trainer, whatever its n_max; null: no limit.",
        ge=1,
        le=100_000,
    )
    max_trainers: int | None = _trainers(
        None,
        "trainers",
        "Submissions beyond this many unfinished trainers are refused; null: no limit.",
        ge=1,
        le=1_000_000,
    )
    max_trainers_per_user: int = _trainers(
        200,
        "trainers",
        "The same for each user.",
        ge=1,
        le=1_000_000,
    )
    submissions_per_minute_per_user: int = _trainers(
        120,
        "submissions",
        "Further submissions of a user within a minute are refused.",
        ge=1,
        le=100_000,
    )
    written_mb_per_day_per_user: int = _trainers(
        100,
        "MB",
        "Submissions and changes of a user that would have the daemon write more within a day are "
        "refused; cancelling never is.",
        ge=1,
        le=1_000_000,
    )
    worker_lease_s: float = _trainers(
        10.0,
        "s",
        "A worker whose process does not answer its agent for this long (stopped, swapped out) is "
        "killed.",
        ge=0.5,
        le=3_600,
    )
    no_progress_s: float = _trainers(
        1_800.0,
        "s",
        "A trainer without a step for this long forms its generation anew, and a worker that does "
        "not take part is killed; 0: never.",
        ge=0,
        le=604_800,
    )
    failure_budget: int = _trainers(
        5,
        "failures",
        "A trainer that fails this many times in a row without progress has failed "
        "(docs/reference/failures.md).",
        ge=1,
        le=10_000,
    )
    quarantine_s: float = _trainers(
        10.0,
        "s",
        "A node on which workers fail twice in a row while their trainers do well elsewhere is "
        "offered to no trainer for this long, twice as long each time, at most half an hour; one "
        "unusable after a pilot gets none for 60 times as long, at most a day; 0: never "
        "(docs/reference/failures.md).",
        ge=0,
        le=1_800,
    )
    rescale_budget: int | None = _trainers(
        None,
        "per hour",
        "A trainer that was given other or more nodes this many times within an hour keeps those "
        "it has; losses, releases and nodes needed for its n_min do not count; null: no limit.",
        ge=1,
        le=10_000,
    )


_containers = partial(setting, "Containers")
_Place = Annotated[str, Field(min_length=1, max_length=4_096, pattern="^/[^:,]*$")]


class ContainerSettings(SettingsGroup):
    """Containers of trainers (docs/howto/containers.md)."""

    container_runtime: Annotated[str, AfterValidator(check_runtime)] = _containers(
        AUTO,
        "",
        "What starts the images of users who do not say so; auto: what the node has and the image "
        "needs.",
        expects=f"{AUTO}, {', '.join(RUNTIMES)}",
    )
    container_mounts: Annotated[str, AfterValidator(check_mounts)] = _containers(
        "",
        "",
        "Directories that every container sees, beside those of its user, as SRC[:DST[:ro]], "
        "separated by commas.",
        expects="mounts such as /scratch,/datasets:/datasets:ro",
    )
    container_sources: tuple[_Place, ...] | None = _containers(
        None,
        "",
        "Directories at or below which users may mount further ones; null: anywhere, with their "
        "own rights.",
        expects="a list of absolute paths, or null",
        strict=False,
        max_length=100,
    )


_users = partial(setting, "Users")


class RunAs(enum.StrEnum):
    """As which Unix user pilots and workers run."""

    DAEMON = "daemon"
    SUBMITTER = "submitter"


class Visibility(enum.StrEnum):
    """The part of other users' trainers that users see."""

    ALL = "all"
    OWN = "own"


class UserSettings(SettingsGroup):
    """Users that may submit, and the user as which trainers run."""

    run_as: RunAs = _users(
        RunAs.DAEMON,
        "",
        "Pilots run as the daemon's user, and only this user may submit trainers; or as the user "
        "who submitted the trainer (docs/howto/slurm-site.md).",
        restart="Pilots of another user would have to be replaced.",
        strict=False,
    )
    visibility: Visibility = _users(
        Visibility.ALL,
        "",
        "What users see of the trainers of others: names, users, sizes and progress (all), or only "
        "how many there are (own); never environment, paths, parameters or logs.",
        strict=False,
    )
    metrics_by_user: bool = _users(
        default=False,
        unit="",
        meaning="Metrics by user and account, too, which everybody may read, whatever the "
        "visibility; not where Slurm's PrivateData is set.",
    )

    @property
    def is_for_all(self) -> bool:
        """Return whether users other than the daemon's may submit trainers."""
        return self.run_as is RunAs.SUBMITTER
