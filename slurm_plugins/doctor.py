"""Finds settings of Slurm that harm jobs or trainers, in the text its commands print. Pure.

Called by the adapter. The figures were measured on Slurm 22.05.8 with ``bftrainer-testcluster``,
eight nodes, see docs/howto/slurm-site.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bftrainer.model.cluster import Node, NodeState
from bftrainer.model.site import NOTHING, Finding, Measured, Weight
from slurm_plugins.parse import settings_in, values_in

PARTITION_ARGV = ("scontrol", "-o", "show", "partition")
SHORT_KILL_WAIT_S = 10
CLOCK_S = 5.0  # less is within what a busy controller takes to answer
SHORT_START_S = 5.0  # an agent itself needs a second or two


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


def n_usable(nodes: Iterable[Node]) -> int:
    """Return how many nodes can have pilots, now or when their jobs have ended."""
    return sum(node.state not in _NO_PILOTS for node in nodes)


_NO_PILOTS = frozenset({NodeState.DOWN, NodeState.DRAINED, NodeState.UNKNOWN})


def findings(settings: SlurmSettings) -> tuple[Finding, ...]:
    """Return all deviations from docs/howto/slurm-site.md, worst first."""
    config = settings_in(settings.config)
    pilots = _partition(settings.partitions, settings.pilot_partition)
    found = [
        *_preemption(config, pilots, settings),
        *_grace(config, pilots),
        *_exempt(config),
        *_scheduler(config, settings),
        *_programs(config, settings),
        *_clock(settings.clock_ahead_s),
    ]
    order = list(Weight)
    return tuple(sorted(found, key=lambda f: (order.index(f.weight), f.code)))


def for_user(found: tuple[Finding, ...], *, grace_s: float) -> tuple[Finding, ...]:
    """Return the findings that concern a user's own daemon, with what a user can do.

    There Slurm's preemption is the rule: what only delays ordinary jobs is the site's choice.
    """
    return tuple(
        replace(f, remedy=_USERS_REMEDY[f.code], weight=Weight.LOSS)
        for f in found
        if f.code in _USERS_REMEDY and not (f.code == "BFT-1265" and grace_s > 0)
    )


_OTHER_PARTITION = "bftrainer down, then bftrainer up --partition NAME with a preemptable one"
_USERS_REMEDY = {
    "BFT-1261": _OTHER_PARTITION,
    "BFT-1262": _OTHER_PARTITION,
    "BFT-1264": _OTHER_PARTITION,
    "BFT-1265": "bftrainer down, then bftrainer up: it uses the grace time",
    "BFT-1269": "fewer pilots (bftrainer up --max-nodes), or ask the site for a longer test",
    "BFT-1275": "nothing; keep nodes longer with a longer bftrainer up --time",
}


def qos_of(partitions: str, name: str) -> str:
    """Return the QOS of a partition; "": none."""
    qos = (_partition(partitions, name) or {}).get("QoS", "N/A")
    return "" if qos in {"N/A", "(null)"} else qos


def qos_argv(name: str) -> tuple[str, ...]:
    """Query the flags of a QOS."""
    return ("sacctmgr", "-nP", "show", "qos", name, "format=flags")


def unknown(why: str) -> Finding:
    """Return the finding that the settings could not be read."""
    return Finding(
        code="BFT-1272",
        weight=Weight.UNKNOWN,
        setting="Slurm's settings",
        cost=f"They could not be read: {why}",
        remedy="Run the doctor again when the controller answers.",
    )


def _partition(text: str, name: str) -> Mapping[str, str] | None:
    for line in text.splitlines():
        values = values_in(line)
        if values.get("PartitionName") == name:
            return values
    return None


def _preemption(
    config: Mapping[str, str], pilots: Mapping[str, str] | None, settings: SlurmSettings
) -> Iterator[Finding]:
    name = settings.pilot_partition
    if pilots is None:
        yield Finding(
            code="BFT-1261",
            weight=Weight.LOSS,
            setting=f"PartitionName={name}",
            cost="There is no such partition, so no pilot can be submitted.",
            remedy=f"PartitionName={name} Nodes=ALL PriorityTier=1 PreemptMode=CANCEL GraceTime=0",
        )
        return
    kind = config.get("PreemptType", "")
    if kind not in {"preempt/partition_prio", "preempt/qos"}:
        yield Finding(
            code="BFT-1262",
            weight=Weight.HARM,
            setting=f"PreemptType={kind}",
            cost="Slurm never ends a pilot for an ordinary job: the safety net is missing.",
            remedy="PreemptType=preempt/partition_prio",
        )
    mode = pilots.get("PreemptMode", config.get("PreemptMode", ""))
    if "CANCEL" not in mode and kind == "preempt/partition_prio":
        yield Finding(
            code="BFT-1263",
            weight=Weight.HARM,
            setting=f"PartitionName={name} PreemptMode={mode}",
            cost=_MODES.get(mode, "Pilots are not cancelled when an ordinary job needs the node."),
            remedy=f"PartitionName={name} ... PreemptMode=CANCEL",
        )
    tiers = _tiers(settings.partitions)
    below = [n for n, tier in sorted(tiers.items()) if n != name and tier <= tiers.get(name, 0)]
    if below and kind == "preempt/partition_prio":
        yield Finding(
            code="BFT-1264",
            weight=Weight.HARM,
            setting=f"PriorityTier of {', '.join(below)} is not above that of {name}",
            cost="Jobs of these partitions wait behind pilots and cannot preempt them.",
            remedy=f"PartitionName={below[0]} ... PriorityTier={tiers.get(name, 0) + 1}",
        )
    ranks_qos = (
        config.get("PriorityType") == "priority/multifactor"
        and _seconds(config.get("PriorityWeightQOS", "0")) > 0
    )
    if below and kind == "preempt/qos" and not ranks_qos:
        yield Finding(
            code="BFT-1273",
            weight=Weight.HARM,
            setting=f"PriorityType={config.get('PriorityType', '')} "
            f"PriorityWeightQOS={config.get('PriorityWeightQOS', '0')}, and {', '.join(below)} "
            f"in no tier above {name}",
            cost="Pilots rank like other jobs: a pending one comes before jobs submitted later.",
            remedy="PriorityType=priority/multifactor PriorityWeightQOS=100000, and Priority=0 for "
            f"the QOS of {name}",
        )


def _exempt(config: Mapping[str, str]) -> Iterator[Finding]:
    """Find what keeps some pilots from being preempted (slurm.conf(5) of 23.02 and of 25.05)."""
    if "PRIORITY" in config.get("PreemptMode", "").split(","):
        yield Finding(
            code="BFT-1572",
            weight=Weight.HARM,
            setting=f"PreemptMode={config['PreemptMode']}",
            cost="A pilot is kept from every ordinary job whose priority is not above its own.",
            remedy="PreemptMode without PRIORITY",
        )
    for word in config.get("PreemptParameters", "").split(","):
        if word.strip().startswith("min_exempt_priority"):
            yield Finding(
                code="BFT-1572",
                weight=Weight.HARM,
                setting=f"PreemptParameters={word.strip()}",
                cost="Pilots of that priority or a higher one are never preempted.",
                remedy="PreemptParameters without it",
            )


def _tiers(partitions: str) -> dict[str, int]:
    shown = map(values_in, partitions.splitlines())
    return {
        values["PartitionName"]: int(_number(values["PriorityTier"]))
        for values in shown
        if "PartitionName" in values and "PriorityTier" in values
    }


_MODES = {
    "REQUEUE": "Slurm restarts pilots by itself (those without --no-requeue); CANCEL ends them.",
    "SUSPEND": "A suspended pilot keeps the node's memory and GPUs.",
    "GANG,SUSPEND": "A suspended pilot keeps the node's memory and GPUs.",
    "OFF": "Slurm never ends a pilot for an ordinary job: the safety net is missing.",
}


def _grace(config: Mapping[str, str], pilots: Mapping[str, str] | None) -> Iterator[Finding]:
    grace = _seconds((pilots or {}).get("GraceTime", "0"))
    if grace > 0:
        yield Finding(
            code="BFT-1265",
            weight=Weight.HARM,
            setting=f"GraceTime={grace:g}",
            cost="A pilot is notified of its preemption only after the grace time, which Slurm "
            "checks every 30 s: jobs started 8 to 29 s later with GraceTime=5 (measured).",
            remedy=f"PartitionName={(pilots or {}).get('PartitionName', 'bf')} ... GraceTime=0",
        )
    exempt = _seconds(config.get("PreemptExemptTime", "0"))
    if exempt > 0:
        yield Finding(
            code="BFT-1266",
            weight=Weight.HARM,
            setting=f"PreemptExemptTime={config['PreemptExemptTime']}",
            cost="Young pilots cannot be preempted: 20 s cost an ordinary job 55 s (measured).",
            remedy="PreemptExemptTime=0",
        )
    wait = _seconds(config.get("KillWait", "30"))
    if wait > SHORT_KILL_WAIT_S:
        yield Finding(
            code="BFT-1267",
            weight=Weight.LOSS,
            setting=f"KillWait={wait:g}",
            cost=f"A pilot that hangs keeps its node {wait:g} s longer; ours end at once.",
            remedy=f"KillWait={SHORT_KILL_WAIT_S}",
        )


def _scheduler(config: Mapping[str, str], settings: SlurmSettings) -> Iterator[Finding]:
    words = [word.strip() for word in config.get("SchedulerParameters", "").split(",")]
    values = dict(word.partition("=")[::2] for word in words)
    for name in ("defer", "defer_batch"):
        if name in values:
            yield Finding(
                code="BFT-1268",
                weight=Weight.HARM,
                setting=f"SchedulerParameters={name}",
                cost="The end of a pilot triggers no scheduling: about 3 s per preempted job "
                "(measured).",
                remedy=f"SchedulerParameters without {name}",
            )
    # slurm.conf(5), 22.05: the default is 500; values below 1 are ignored.
    depth = int(_number(values.get("bf_max_job_test", ""))) or 500
    limit = settings.measured.max_nodes
    n_pilots = settings.n_nodes if limit is None else min(limit, settings.n_nodes)
    needed = settings.queue_length + n_pilots
    if needed > depth:
        yield Finding(
            code="BFT-1269",
            weight=Weight.LOSS,
            setting=f"bf_max_job_test={depth}",
            cost=f"{settings.queue_length} jobs are pending and up to {n_pilots} pilots "
            "behind them: backfill stops before it reaches the last, so idle nodes stay idle.",
            remedy=f"SchedulerParameters=...,bf_max_job_test={2 * needed}",
        )
    if (
        config.get("AccountingStorageType", "").endswith("slurmdbd")
        and "noreserve" not in settings.qos_flags.lower()
    ):
        yield _no_reserve(settings)
    if not settings.has_hook:
        yield Finding(
            code="BFT-1271",
            weight=Weight.HARM,
            setting=settings.why_not_told or "no hook (docs/howto/slurm-site.md)",
            cost="Jobs that only backfill can start are found by polling: with a poll per second "
            "about 4% of them lose one bf_interval (measured).",
            remedy="bftrainer-slurm-hook --file FILE --directory DIRECTORY",
        )


def _no_reserve(settings: SlurmSettings) -> Finding:
    return Finding(
        code="BFT-1270",
        weight=Weight.HARM,
        setting=f"PartitionName={settings.pilot_partition} has no QOS with Flags=NoReserve",
        cost="Pending pilots appear in the plan of later jobs.",
        remedy="sacctmgr add qos bfqos UsageFactor=0 Priority=0 Flags=NoReserve; "
        f"PartitionName={settings.pilot_partition} ... QOS=bfqos",
    )


def _programs(config: Mapping[str, str], settings: SlurmSettings) -> Iterator[Finding]:
    """Check the programs that run on a node before and after each job, including pilots.

    An EpilogSlurmctld of 6 s held the job but not its node: the next started 0.8 s later.
    """
    measured = settings.measured
    epilogs, prologs = _set(config, "Epilog"), _set(config, "Prolog", "PrologSlurmctld")
    end_s, start_s = measured.end_s, measured.start_s
    remedy = (
        "as the first lines of the script, if what it does can wait for the next ordinary job:\n"
        "    # a pilot of bftrainer: Slurm itself ends its processes\n"
        f'    [ "$SLURM_JOB_PARTITION" = {settings.pilot_partition} ] && exit 0'
    )
    if end_s is None and epilogs:
        yield Finding(
            code="BFT-1274",
            weight=Weight.UNKNOWN,
            setting=epilogs,
            cost="It runs after each pilot, too, and every ordinary job that follows one on its "
            "node waits until it has ended. The daemon measures how long that is: run the doctor "
            "again when it has released nodes.",
            remedy=remedy,
        )
    elif end_s is not None and end_s > measured.promise_s:
        yield Finding(
            code="BFT-1274",
            weight=Weight.HARM,
            setting=epilogs or "no Epilog",
            cost=f"A node is usable {end_s:.1f} s after its pilot was asked to leave (measured), "
            f"but {measured.promise_s:g} s are promised: every ordinary job that follows a pilot "
            "waits for that.",
            remedy=remedy if epilogs else "bftrainer report harm names the part that is slow.",
        )
    if prologs and (start_s is None or start_s > SHORT_START_S):
        how_long = "The daemon measures" if start_s is None else f"{start_s:.1f} s (measured) are"
        yield Finding(
            code="BFT-1275",
            weight=Weight.LOSS,
            setting=prologs,
            cost="It runs before each pilot, too, and meanwhile a node that we take is idle. "
            f"{how_long} the time from a pilot's start until its agent connects.",
            remedy=remedy,
        )


def _clock(ahead_s: float) -> Iterator[Finding]:
    if abs(ahead_s) >= CLOCK_S:
        yield Finding(
            code="BFT-1554",
            weight=Weight.LOSS,
            setting=f"the controller's clock is {abs(ahead_s):.0f} s "
            f"{'ahead of' if ahead_s > 0 else 'behind'} this host's",
            cost="At 300 s munge refuses our requests, and the daemon sees the queue no more.",
            remedy="set the clocks of both hosts by NTP (chronyc tracking)",
        )


def _set(config: Mapping[str, str], *kinds: str) -> str:
    """Return the programs of these kinds as in slurm.conf; "": none."""
    return " ".join(
        f"{name}={value}"
        for name, value in config.items()
        if name.partition("[")[0] in kinds and value not in {"", "(null)"}  # or Epilog[0]
    )


def _seconds(text: str) -> float:
    """Parse ``5``, ``5 sec`` or ``00:00:05``."""
    word = text.split(maxsplit=1)[0] if text.split() else "0"
    seconds = 0.0
    for part in word.split(":")[:3]:
        seconds = 60.0 * seconds + _number(part)
    return seconds


def _number(text: str) -> float:
    """Parse leading digits, up to the length of Slurm's numbers."""
    found = re.match(r"[0-9]{1,19}", text)
    return float(found[0]) if found else 0.0
