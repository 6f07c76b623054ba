"""Finds settings of Slurm that harm jobs or trainers, in the text its commands print. Pure.

Called by the adapter. The figures were measured on Slurm 22.05.8 with ``bftrainer-testcluster``,
eight nodes, see docs/howto/slurm-site.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bftrainer.batch.findings import FindingTable, Holds
from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.hostlist import ParseError, expand
from bftrainer.model.site import NOTHING, Finding, Measured, Weight
from slurm_plugins.parse import settings_in, values_in

PARTITION_ARGV = ("scontrol", "-o", "show", "partition")
SHORT_KILL_WAIT_S = 10
CLOCK_S = 5.0  # less is within what a busy controller takes to answer
UNKILLABLE_S = 60.0  # slurm.conf(5): the default of UnkillableStepTimeout
NEAR = 2.0  # times the usual end: it may take that long
_NO_LIMIT = 65_534.0  # as Slurm prints it
_ENDLESS = "Slurm waits for it without limit (PrologEpilogTimeout)."
# They find processes by parent or process group, proctrack/cgroup all.
_NOT_SWEPT = frozenset({"proctrack/linuxproc", "proctrack/pgid"})
SHORT_START_S = 5.0  # an agent itself needs a second or two
_NO_PILOTS = frozenset({NodeState.DOWN, NodeState.DRAINED, NodeState.UNKNOWN})
RECONFIGURE = "scontrol reconfigure"  # what takes most settings into use, see slurm.conf(5)
# By code, where another command comes next.
_COMMANDS = {
    "BFT-1270": "sacctmgr show qos format=name,flags,priority",
    "BFT-1271": "bftrainer help slurm-site",
    "BFT-1272": "sinfo",
    "BFT-1274": "bftrainer report harm",
    "BFT-1275": "bftrainer report harm",
    "BFT-1554": "chronyc tracking",
    "BFT-1555": "munge --version",
    "BFT-2126": "bftrainer help slurm-site",
    # slurm.conf(5), 22.05: a restart of slurmctld is required.
    "BFT-1556": "systemctl restart slurmctld",
}
# Exempt from preemption: slurm.conf(5) of 23.02 to 26.05, there also with SUSPEND. An
# EpilogSlurmctld of 6 s held the job but not its node: the next started 0.8 s later.
_TABLE = FindingTable(
    """
BFT-1261 stop no_partition
PartitionName={name}
There is no such partition, so no pilot can be submitted.
-> PartitionName={name} Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0

BFT-1262 harm no_preemption
PreemptType={kind}
Slurm never ends a pilot for an ordinary job: the safety net is missing.
-> PreemptType=preempt/partition_prio

BFT-1263 harm not_cancelled
PartitionName={name} PreemptMode={mode}
{mode_cost}
-> PartitionName={name} ... PreemptMode=CANCEL

BFT-1264 harm low_tiers
PriorityTier of {below} is not above that of {name}
Jobs of these partitions wait behind pilots and cannot preempt them.
-> PartitionName={first_below} ... PriorityTier={tier_above}

BFT-1273 harm low_qos
PriorityType={priority} PriorityWeightQOS={qos_weight}, and {below} in no tier above {name}
Pilots rank like other jobs: a pending one comes before jobs submitted later.
-> PriorityType=priority/multifactor PriorityWeightQOS=100000, and Priority=0 for the QOS of {name}

BFT-2126 harm one_user
PartitionName={partition} ExclusiveUser=YES
A node has jobs of one user at a time. Backfill ends no pilot of another user for a job there, and
plans none on its node (measured): such a job starts when the daemon has given the node back, or
when it is the first of its partition.
-> PartitionName={partition} ... ExclusiveUser=NO, or other nodes for PartitionName={name}

BFT-1265 harm grace
GraceTime={grace_s:g}
A pilot is notified of its preemption only after the grace time, which Slurm checks every 30 s: jobs
started 8 to 29 s later with GraceTime=5 (measured).
-> PartitionName={name} ... GraceTime=0

BFT-1266 harm exempt_time
PreemptExemptTime={exempt_time}
Slurm preempts no pilot before it has run so long: ordinary jobs that need its node wait.
-> PreemptExemptTime=0

BFT-1267 loss kill_wait
KillWait={kill_wait_s:g}
A pilot that hangs keeps its node {kill_wait_s:g} s longer; ours end at once.
-> KillWait={short_kill_wait_s}

BFT-1572 harm by_priority
PreemptMode={cluster_mode}
A pilot is kept from every ordinary job whose priority is not above its own.
-> PreemptMode without PRIORITY

BFT-1572 harm exempt_priority
PreemptParameters={word}
Pilots of that priority or a higher one are never preempted.
-> PreemptParameters without it

BFT-1268 harm deferred
SchedulerParameters={word}
The end of a pilot triggers no scheduling: about 3 s per preempted job (measured).
-> SchedulerParameters without {word}

BFT-1269 loss shallow
bf_max_job_test={depth}
{queue_length} jobs are pending and up to {n_pilots} pilots behind them: backfill stops before it
reaches the last, so idle nodes stay idle.
-> SchedulerParameters=...,bf_max_job_test={deeper}

BFT-1270 harm reserves
PartitionName={name} has no QOS with Flags=NoReserve
Pending pilots appear in the plan of later jobs.
-> {quality}; PartitionName={name} ... QOS=bfqos

BFT-1271 harm no_hook
{why_not_told}
Jobs that only backfill can start are found by polling: with a poll per second about 4% of them lose
one bf_interval (measured).
-> bftrainer-slurm-hook --file FILE --directory DIRECTORY

BFT-1274 unknown epilog
{epilogs}
How long it takes was not found out, as no daemon has told of a node that it released. It runs after
each pilot, too, and every ordinary job that follows one on its node waits until it has ended.
{limit} Run the doctor again when a daemon has released nodes.
-> {skip_pilots}

BFT-1274 harm slow_end
{epilogs}
A node is usable {end_s:.1f} s after its pilot was asked to leave (measured), but {promise_s:g} s
are promised: every ordinary job that follows a pilot waits for that.
-> {end_remedy}

BFT-1558 harm near_limit
PrologEpilogTimeout={limit_s:g}
A node is usable {end_s:.1f} s after its pilot was asked to leave (measured). An Epilog that takes
{limit_s:g} s is ended, and its node drained.
-> PrologEpilogTimeout={longer_s:.0f}

BFT-1556 harm escapes
ProctrackType={tracking}
Processes that leave their parent are not ended with their job: they keep memory and GPUs from the
next one.
-> ProctrackType=proctrack/cgroup

BFT-1557 harm unkillable
UnkillableStepTimeout={unkillable_s:g}
Slurm drains a node whose processes have not ended so long after SIGKILL. Those of a busy node may
need the default of 60 s.
-> UnkillableStepTimeout=60

BFT-1275 loss prolog
{prologs}
It runs before each pilot, too, and meanwhile a node that we take is idle. {how_long} the time from
a pilot's start until its agent connects.
-> {skip_pilots}

BFT-1554 loss clock
the controller's clock is {clock_s:.0f} s {clock} this host's
At 300 s munge refuses our requests, and the daemon sees the queue no more.
-> set the clocks of both hosts by NTP (chronyc tracking)

BFT-1555 harm old_munge
munge {munge} on this host
Releases before 0.5.18 can leak their key, with which any user can be any other, root included, for
Slurm (CVE-2026-25506); its package does not name that cure.
-> upgrade munge on all hosts of the cluster, then replace its key

BFT-1272 unknown unread
Slurm's settings
They were not found out, as they could not be read: {why}
-> Run the doctor again on a host where sinfo answers.
""",
    command=RECONFIGURE,
    commands=_COMMANDS,
)
_QUALITY = "sacctmgr add qos bfqos UsageFactor=0 Priority=0 Flags=NoReserve"
_SKIP_PILOTS = """\
as the first lines of the script, if what it does can wait for the next ordinary job:
    # a pilot of bftrainer: Slurm itself ends its processes
    [ "$SLURM_JOB_PARTITION" = {} ] && exit 0"""
# What a mode of preemption costs; ``own_site`` says the same to users.
MODES = {
    "REQUEUE": "Slurm restarts pilots by itself (those without --no-requeue); CANCEL ends them.",
    "SUSPEND": "A suspended pilot keeps the node's memory and GPUs.",
    "GANG,SUSPEND": "A suspended pilot keeps the node's memory and GPUs.",
    "OFF": "Slurm never ends a pilot for an ordinary job: the safety net is missing.",
}
_OTHER_MODE = "Pilots are not cancelled when an ordinary job needs the node."
_OTHER_PARTITION = "bftrainer down, then bftrainer up --partition NAME with a preemptable one"
_USERS_COMMAND = "bftrainer help own-daemon"
_USERS_REMEDY = {
    "BFT-1261": _OTHER_PARTITION,
    "BFT-1262": _OTHER_PARTITION,
    "BFT-1264": _OTHER_PARTITION,
    "BFT-1265": "bftrainer down, then bftrainer up: it uses the grace time",
    "BFT-1269": "fewer pilots (bftrainer up --max-nodes), or ask the site for a longer test",
    "BFT-1275": "nothing; keep nodes longer with a longer bftrainer up --time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSettings:
    """The printed settings."""

    config: str  # scontrol show config
    partitions: str  # scontrol -o show partition
    pilot_partition: str
    queue_length: int  # pending ordinary jobs
    n_nodes: int  # on which pilots can run (``n_usable``)
    has_hook: bool
    why_not_told: str = ""  # why the hook's file is not followed
    qos_flags: str = ""  # sacctmgr show qos, of the pilots' partition
    measured: Measured = NOTHING
    clock_ahead_s: float = 0.0  # the controller's
    old_munge: str = ""  # its release on this host, if it has a known hole


def n_usable(nodes: Iterable[Node]) -> int:
    """Return how many nodes can have pilots, now or when their jobs have ended."""
    return sum(node.state not in _NO_PILOTS for node in nodes)


def findings(settings: SlurmSettings) -> tuple[Finding, ...]:
    """Return all deviations from docs/howto/slurm-site.md, worst first."""
    config, name = settings_in(settings.config), settings.pilot_partition
    holds = {
        **_preemption(config, settings),
        **_exemption(config, settings),
        **_ownership(settings),
        **_scheduler(config, settings),
        **_programs(config, settings),
        **_drains(config, settings.measured),
    }
    return _TABLE.findings(holds, {"name": name, "quality": _QUALITY})


def unknown(why: str) -> Finding:
    """Return the finding that the settings could not be read."""
    return _TABLE.findings({"unread": True}, {"why": why})[0]


def for_user(found: tuple[Finding, ...], *, grace_s: float) -> tuple[Finding, ...]:
    """Return the findings that concern a user's own daemon, with what a user can do.

    There Slurm's preemption is the rule: what only delays ordinary jobs is the site's choice.
    """
    for_users = []
    for finding in found:
        if finding.code not in _USERS_REMEDY or (finding.code == "BFT-1265" and grace_s > 0):
            continue
        weight = Weight.LOSS
        if finding.weight is Weight.STOP:
            weight = Weight.STOP
        for_users.append(
            replace(
                finding,
                remedy=_USERS_REMEDY[finding.code],
                weight=weight,
                command=_USERS_COMMAND,
            )
        )
    return tuple(for_users)


def partitions_in(text: str) -> dict[str, dict[str, str]]:
    """Parse ``PARTITION_ARGV``'s output: settings by partition."""
    partitions = {}
    for line in text.splitlines():
        values = values_in(line)
        if "PartitionName" in values:
            partitions[values["PartitionName"]] = values
    return partitions


def qos_of(partitions: str, name: str) -> str:
    """Return the QOS of a partition; "": none."""
    qos = partitions_in(partitions).get(name, {}).get("QoS", "N/A")
    if qos in {"N/A", "(null)"}:
        return ""
    return qos


def qos_argv(name: str) -> tuple[str, ...]:
    """Query the flags of a QOS."""
    return ("sacctmgr", "-nP", "show", "qos", name, "format=flags")


def _preemption(config: Mapping[str, str], settings: SlurmSettings) -> Holds:
    name, partitions = settings.pilot_partition, partitions_in(settings.partitions)
    if name not in partitions:
        return {"no_partition": True}
    kind = config.get("PreemptType", "")
    mode = partitions[name].get("PreemptMode", config.get("PreemptMode", ""))
    priority, weight = config.get("PriorityType", ""), config.get("PriorityWeightQOS", "0")
    tiers = {n: _number(p["PriorityTier"]) for n, p in partitions.items() if "PriorityTier" in p}
    pilot_tier = int(tiers.get(name, 0))
    low = [n for n, tier in sorted(tiers.items()) if n != name and tier <= pilot_tier]
    below = ", ".join(low)
    is_by_tier, is_by_qos = kind == "preempt/partition_prio", kind == "preempt/qos"
    is_ranked = priority == "priority/multifactor" and _seconds(weight) > 0
    rank = {"below": below, "priority": priority, "qos_weight": weight}
    first_below = next(iter(low), "")
    tier = {"below": below, "first_below": first_below, "tier_above": pilot_tier + 1}
    how = {"mode": mode, "mode_cost": MODES.get(mode, _OTHER_MODE)}
    return {
        "no_preemption": [{"kind": kind}] * (not is_by_tier and not is_by_qos),
        "not_cancelled": [how] * ("CANCEL" not in mode and is_by_tier),
        "low_tiers": [tier] * (bool(low) and is_by_tier),
        "low_qos": [rank] * (bool(low) and is_by_qos and not is_ranked),
    }


def _exemption(config: Mapping[str, str], settings: SlurmSettings) -> Holds:
    """Find what delays the end of some pilots, or keeps them from being preempted."""
    pilots = partitions_in(settings.partitions).get(settings.pilot_partition, {})
    grace_s, exempt = _seconds(pilots.get("GraceTime", "0")), config.get("PreemptExemptTime", "0")
    wait_s, mode = _seconds(config.get("KillWait", "30")), config.get("PreemptMode", "")
    words = [word.strip() for word in config.get("PreemptParameters", "").split(",")]
    kill_wait = {"kill_wait_s": wait_s, "short_kill_wait_s": SHORT_KILL_WAIT_S}
    ahead_s, is_used = settings.clock_ahead_s, config.get("AuthType") == "auth/munge"
    clock = {"clock_s": abs(ahead_s), "clock": "ahead of" if ahead_s > 0 else "behind"}
    return {
        "grace": [{"grace_s": grace_s}] * (grace_s > 0),
        "exempt_time": [{"exempt_time": exempt}] * (_seconds(exempt) > 0),
        "kill_wait": [kill_wait] * (wait_s > SHORT_KILL_WAIT_S),
        "by_priority": [{"cluster_mode": mode}] * ("PRIORITY" in mode.split(",")),
        "exempt_priority": [{"word": w} for w in words if w.startswith("min_exempt_priority")],
        "old_munge": [{"munge": settings.old_munge}] * (is_used and settings.old_munge != ""),
        "clock": [clock] * (abs(ahead_s) >= CLOCK_S),
    }


def _ownership(settings: SlurmSettings) -> Holds:
    """Find partitions of which a node has jobs of one user at a time, pilots among them.

    Source: ``filter_by_node_owner`` and its callers, 22.05 to 26.05: the main scheduler adds the
    nodes of jobs that it may preempt, backfill does not.
    """
    partitions = partitions_in(settings.partitions)
    pilots = partitions.get(settings.pilot_partition, {})
    one_user: list[Mapping[str, str]] = []
    for name, values in sorted(partitions.items()):
        if not is_of_one_user(values) or not _share_nodes(values, pilots):
            continue
        one_user.append({"partition": name})
    return {"one_user": one_user}


def is_of_one_user(partition: Mapping[str, str]) -> bool:
    """Return whether a node has jobs of this partition of one user at a time."""
    # Exclusive= replaces ExclusiveUser= in 26.05.
    return "YES" in partition.get("ExclusiveUser", "NO") or partition.get("Exclusive") == "USER"


def _share_nodes(partition: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two partitions have nodes in common; what cannot be read may be any."""
    try:
        nodes, other_nodes = expand(partition["Nodes"]), expand(other["Nodes"])
    except (KeyError, ParseError):
        return True
    return not set(nodes).isdisjoint(other_nodes)


def _scheduler(config: Mapping[str, str], settings: SlurmSettings) -> Holds:
    values = {}
    for word in config.get("SchedulerParameters", "").split(","):
        parameter, _, value = word.strip().partition("=")
        values[parameter] = value
    # slurm.conf(5), 22.05: the default is 500; values below 1 are ignored.
    depth = int(_number(values.get("bf_max_job_test", ""))) or 500
    n_pilots = settings.n_nodes
    if settings.measured.max_nodes is not None:
        n_pilots = min(settings.measured.max_nodes, n_pilots)
    n_jobs = settings.queue_length + n_pilots
    queue = {"queue_length": settings.queue_length, "n_pilots": n_pilots}
    has_database = config.get("AccountingStorageType", "").endswith("slurmdbd")
    why = settings.why_not_told or "no hook (docs/howto/slurm-site.md)"
    return {
        "deferred": [{"word": word} for word in ("defer", "defer_batch") if word in values],
        "shallow": [{"depth": depth, "deeper": 2 * n_jobs, **queue}] * (n_jobs > depth),
        "reserves": has_database and "noreserve" not in settings.qos_flags.lower(),
        "no_hook": [{"why_not_told": why}] * (not settings.has_hook),
    }


def _programs(config: Mapping[str, str], settings: SlurmSettings) -> Holds:
    """Check the programs that run on a node before and after each job, including pilots."""
    skip = _SKIP_PILOTS.format(settings.pilot_partition)
    epilogs, prologs = _set(config, "Epilog"), _set(config, "Prolog", "PrologSlurmctld")
    end_s, start_s = settings.measured.end_s, settings.measured.start_s
    promise_s = settings.measured.promise_s
    end_remedy = "bftrainer report harm names the part that is slow."
    if epilogs:
        end_remedy = skip
    late = {
        "epilogs": epilogs or "no Epilog",
        "end_s": end_s,
        "promise_s": promise_s,
        "end_remedy": end_remedy,
    }
    how_long = "The daemon measures"
    if start_s is not None:
        how_long = f"{start_s:.1f} s (measured) are"
    limit = _ENDLESS
    if limit_s := _epilog_limit_s(config):
        limit = f"Slurm ends it after {limit_s:g} s and drains the node."
    prolog = {"prologs": prologs, "how_long": how_long, "skip_pilots": skip}
    is_slow = start_s is None or start_s > SHORT_START_S
    return {
        "epilog": [{"epilogs": epilogs, "skip_pilots": skip, "limit": limit}]
        * bool(epilogs and end_s is None),
        "slow_end": [late] * (end_s is not None and end_s > promise_s),
        "prolog": [prolog] * (bool(prologs) and is_slow),
    }


def _drains(config: Mapping[str, str], measured: Measured) -> Holds:
    """Find what leaves processes behind a pilot, or drains its node for them."""
    tracking, end_s = config.get("ProctrackType", ""), measured.end_s or 0.0
    limit_s = 0.0
    if _set(config, "Epilog"):
        limit_s = _epilog_limit_s(config)
    unkillable_s = _seconds(config.get("UnkillableStepTimeout", "0"))
    near = {"limit_s": limit_s, "end_s": end_s, "longer_s": NEAR * end_s + limit_s}
    return {
        "escapes": [{"tracking": tracking}] * (tracking in _NOT_SWEPT),
        "near_limit": [near] * (0 < limit_s < NEAR * end_s),
        "unkillable": [{"unkillable_s": unkillable_s}] * (0 < unkillable_s < UNKILLABLE_S),
    }


def _epilog_limit_s(config: Mapping[str, str]) -> float:
    """Return when Slurm ends an Epilog, in seconds; 0: never."""
    seconds = _seconds(config.get("PrologEpilogTimeout", ""))
    if seconds >= _NO_LIMIT:
        return 0.0
    return seconds


def _set(config: Mapping[str, str], *kinds: str) -> str:
    """Return the programs of these kinds as in slurm.conf; "": none."""
    return ", ".join(
        f"{name}={value}"
        for name, value in config.items()
        if name.partition("[")[0] in kinds and value not in {"", "(null)"}  # or Epilog[0]
    )


def _seconds(text: str) -> float:
    """Parse ``5``, ``5 sec`` or ``00:00:05``."""
    word, *_ = text.split() or ["0"]
    seconds = 0.0
    for part in word.split(":")[:3]:
        seconds = 60.0 * seconds + _number(part)
    return seconds


def words_for_users(mode: str, exempt_time: str) -> tuple[str, ...]:
    """Say what preemption means for the pilots of a user's own daemon, before it starts.

    Args:
        mode: of their partition, CANCEL or REQUEUE among its words.
        exempt_time: PreemptExemptTime, of the QOS or of the cluster.
    """
    how = "Slurm ends a preempted pilot, and the daemon asks for another node."
    if "CANCEL" not in mode:
        how = f"{how} PreemptMode={mode} restarts none of them: they have --no-requeue."
    exempt_s = _seconds(exempt_time)
    if exempt_s <= 0:
        return (how,)
    young = f"PreemptExemptTime={exempt_time}: no pilot is preempted in its first {exempt_s:g} s."
    return (how, young)


def _number(text: str) -> float:
    """Parse leading digits, up to the length of Slurm's numbers."""
    digits = re.match(r"[0-9]{1,19}", text)
    if digits is None:
        return 0.0
    return float(digits[0])
