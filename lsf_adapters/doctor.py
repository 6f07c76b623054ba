"""The cost of LSF's settings, and whether LSF itself ends a pilot for an ordinary job. Pure.

Called by the adapter. volclava has no preemption. Sources: lsb.queues(5) and lsb.params(5) of LSF
10.1, "preemptive scheduling"; documented, not tried.

Figures called measured are of volclava 2.2 with one job per host, at
MBD_SLEEP_TIME=2 and 10; what only IBM's LSF 10.1 has is from its documentation and was not tried.
docs/howto/lsf-site.md has the same settings in one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from bftrainer.batch.findings import WEIGHT, FindingTable, Holds, Values
from bftrainer.model.site import NOTHING, Finding, Measured, Weight
from lsf_adapters.commands import Dialect
from lsf_adapters.queues import Facts, Queue, number_of

NOT_KNOWN = "lsid names neither IBM Spectrum LSF 10.1 nor volclava 2."
USUAL_CYCLE_S = 10.0  # MBD_SLEEP_TIME that the installers set
USUAL_INTERVAL_S = 10.0  # default of JOB_TERMINATE_INTERVAL
_UNREAD = "They were not found out, as they could not be read"
USUAL_PILOT_S = 14_400.0  # default of the policy's pilot_time_limit_s
RECONFIGURE = "badmin reconfig"  # what takes changed files into use
_COMMANDS = {  # by code, where another command comes next
    "BFT-1238": "lsid",
    "BFT-1240": "{command}",
    "BFT-1291": "bftrainer site init --batch-system lsf --write",
    "BFT-1296": "bftrainer site init --batch-system lsf --write",
}
_TABLE = FindingTable(
    """
BFT-1235 harm job_types
PREEMPT_JOBTYPE = {types}
{costs} (documented).
-> lsb.params: PREEMPT_JOBTYPE = {needed}

BFT-1235 harm exclusive_locks
LSB_DISABLE_LIMLOCK_EXCL is not Y
Exclusive jobs (bsub -x) preempt no pilot on the host they want (documented).
-> lsf.conf: LSB_DISABLE_LIMLOCK_EXCL=Y

BFT-1236 loss slow_cycle
MBD_SLEEP_TIME = {cycle_s:g}
A host that a pilot has left is given to a job in the next pass: 2 s later at MBD_SLEEP_TIME=2
(measured), up to {cycle_s:g} s here; pilots start as late.
-> lsb.params: MBD_SLEEP_TIME = {usual_cycle_s:g}

BFT-1236 harm accept_interval
JOB_ACCEPT_INTERVAL: {accept_s:g} s
A host accepts no second job for so long: an ordinary job waits up to {accept_s:g} s for a host
whose pilot has just started.
-> lsb.params: JOB_ACCEPT_INTERVAL = 0

BFT-1237 loss terminate_interval
JOB_TERMINATE_INTERVAL = {interval_s:g}
A pilot that hangs gets INT, TERM and KILL this far apart and keeps its host {twice_s:g} s (22 s at
10, measured); ours end at the first signal.
-> lsb.params: JOB_TERMINATE_INTERVAL = 5

BFT-1237 harm job_controls
JOB_CONTROLS of {name}: TERMINATE[{terminate}]
This replaces INT, TERM and KILL (measured): LSF can never end a pilot that hangs.
-> lsb.queues, {name}: remove JOB_CONTROLS

BFT-1237 loss no_warning
LSB_USE_SEQUENTIAL_SIGNAL is not Y
LSF ends parallel jobs, so pilots, with KILL alone (documented): trainers lose a preempted node
without warning, and the step in flight.
-> lsf.conf: LSB_USE_SEQUENTIAL_SIGNAL=Y

BFT-1237 harm slow_end
SBD_SLEEP_TIME = {sleep}{post}
A host is usable {end_s:.1f} s after its pilot was asked to leave (measured here), but {promise_s:g}
s are promised: LSF looks for ended jobs this rarely, and runs POST_EXEC before it gives the host to
others.
-> lsb.params: SBD_SLEEP_TIME = 2, or harm_slo_s: {slo_s:.0f} in the policy

BFT-1238 unknown unread
LSF's settings
{cost}: {why}
-> Run the doctor again when lsid, bqueues -l and bparams -l answer.

BFT-1239 loss rerun
RERUNNABLE of {name}: yes
LSF queues the pilots of a lost host again; they end at once when they start, but wait for hosts
until then.
-> lsb.queues, {name}: RERUNNABLE = NO

BFT-1240 stop refused
{setting}
No pilot starts: {why}.
-> {remedy}

BFT-1291 stop no_queue
QUEUE_NAME = {name}
There is no such queue, so no pilot can be submitted.
-> lsb.queues: as bftrainer site init --batch-system lsf prints it

BFT-1292 harm no_preemption
{why}
LSF never ends a pilot for an ordinary job: the safety net is missing. When daemon and agent both
fail, a job waits until the pilot's time limit, or until the agents give the daemon up (lease_s).
-> {remedy}

BFT-1293 harm suspended
{name} without TERMINATE_WHEN = PREEMPT
A preempted pilot is suspended, LSF's default: it keeps the host's memory and GPUs, and ordinary
jobs run beside it.
-> lsb.queues, {name}: TERMINATE_WHEN = PREEMPT

BFT-1294 harm delay
PREEMPT_DELAY = {delay_s:g}
An ordinary job preempts nothing in its first {delay_s:g} s (documented).
-> {where}: remove PREEMPT_DELAY

BFT-1294 harm interval
NO_PREEMPT_INTERVAL = {minutes:g}
A pilot cannot be preempted in its first {minutes:g} minutes (documented); queues with such a
guarantee are no use for giving nodes back.
-> lsb.params: remove NO_PREEMPT_INTERVAL

BFT-1295 harm exempt
{parameter} = {value:g}
A pilot that {when} can no longer be preempted (documented).
-> {where}: remove {parameter}

BFT-1296 harm untold
{why_not_told}
Jobs are noticed by polling, a second late, and not 0.1 to 0.4 s after bsub was called (measured): a
pilot that leaves just after a pass of the scheduler costs its job another one (MBD_SLEEP_TIME).
Polls are more frequent, too.
-> batch_options: events_file: LSB_SHAREDIR/CLUSTER/logdir/lsb.events, readable by {user}

BFT-1297 harm low_priority
PRIORITY of {below} is not above {priority}, that of {name}
Jobs of these queues wait behind pilots and cannot preempt them.
-> {remedy}

BFT-1298 loss no_backfill
{name} without BACKFILL
Slots reserved for a waiting parallel job stay idle: only a queue with BACKFILL gets a pilot onto
them (measured).
-> lsb.queues, {name}: BACKFILL = Y

BFT-1299 loss short_limit
RUNLIMIT of {name}: {limit_min:g} minutes
bsub refuses every longer pilot, and by default a pilot may stay {usual_min:g} minutes
(pilot_time_limit_s).
-> lsb.queues, {name}: RUNLIMIT = 10 {usual_min:g}, or pilot_time_limit_s: {limit_s:g} in the policy
""",
    command=RECONFIGURE,
    commands=_COMMANDS,
)
_LIST = r"\b{}\b(?:\s*[\[(]([^\])]*)[\])])?"
_PREEMPTABLE = re.compile(_LIST.format("PREEMPTABLE"))
_PREEMPTIVE = re.compile(_LIST.format("PREEMPTIVE"))
_EXEMPT = {
    **dict.fromkeys(("MAX_JOB_PREEMPT", "MAX_TOTAL_TIME_PREEMPT"), "has been preempted so often"),
    "NO_PREEMPT_RUN_TIME": "has run so long",
    "NO_PREEMPT_FINISH_TIME": "is to end so soon",
}
_TYPE_COSTS = {
    "BACKFILL": "a pilot, which may have backfilled, is preempted in special cases only",
    "EXCLUSIVE": "exclusive jobs (bsub -x) preempt no pilot on the host they want",
}


def findings(facts: Facts, measured: Measured = NOTHING) -> tuple[Finding, ...]:
    """Return all deviations from docs/howto/lsf-site.md, worst first."""
    if facts.dialect is Dialect.UNKNOWN:
        return (unknown(NOT_KNOWN),)
    holds = {
        "no_queue": facts.pilots is None,
        "untold": bool(facts.why_not_told),
        **_dispatch(facts),
        **_ending(facts, measured),
    }
    if facts.pilots:
        holds |= _of_queue(facts, facts.pilots)
    if facts.dialect is Dialect.IBM:
        holds |= _preemption(facts)
    values = {
        "name": facts.pilot_queue,
        "why_not_told": facts.why_not_told.rstrip("."),
        "user": facts.user,
    }
    return _TABLE.findings(holds, values)


def unknown(why: str) -> Finding:
    """Return the finding that settings could not be read."""
    return _TABLE.findings({"unread": True}, {"why": why, "cost": _UNREAD})[0]


def _of_queue(facts: Facts, pilots: Queue) -> Holds:
    """Check that pilots get into their queue, out of it onto hosts, and off these again."""
    name, is_ibm = facts.pilot_queue, facts.dialect is Dialect.IBM
    below: list[str] = []
    without_preemption: list[str] = []  # of those above the pilots' queue
    for queue in facts.others:
        if queue.priority <= pilots.priority:
            below.append(queue.name)
        elif not _can_preempt(queue, pilots):
            without_preemption.append(queue.name)
    below.sort()
    without_preemption.sort()
    lowest = min((queue.priority for queue in facts.others), default=0)
    remedy = f"lsb.queues, {name}: PRIORITY = {lowest - 1}"
    if lowest <= 1:  # a priority is 1 at least
        remedy = f"lsb.queues, {', '.join(below)}: PRIORITY above {pilots.priority}"
    order = {"below": ", ".join(below), "priority": pilots.priority, "remedy": remedy}
    net = {
        "why": "volclava has no preemption",
        "remedy": "lease_s: 300 in the policy: agents without a daemon leave this soon",
    }
    if is_ibm:
        net = {
            "why": f"no job of {', '.join(without_preemption)} preempts {name}",
            "remedy": f"lsb.queues, {name}: PREEMPTION = PREEMPTABLE",
        }
    is_suspended = facts.others and "PREEMPT" not in pilots.settings.get("TERMINATE_WHEN", "")
    limit_s = pilots.limit_max_s
    if limit_s is None:
        limit_s = USUAL_PILOT_S
    limit = {"limit_s": limit_s, "limit_min": limit_s / 60, "usual_min": USUAL_PILOT_S / 60}
    is_rerun = pilots.settings.get("RERUNNABLE", "no").lower().startswith("y")
    return {
        "low_priority": [order] * bool(below),
        "no_preemption": [net] * (not is_ibm or bool(without_preemption)),
        "suspended": bool(is_ibm and not without_preemption and is_suspended),
        "refused": _refusals(facts, pilots),
        "no_backfill": "BACKFILL" not in pilots.policies,
        "short_limit": [limit] * (limit_s < USUAL_PILOT_S),
        "rerun": is_rerun and not is_ibm,  # there bsub -rn overrides it
    }


def _refusals(facts: Facts, pilots: Queue) -> Iterator[Values]:
    name, status = facts.pilot_queue, pilots.status

    def refused(setting: str, why: str, remedy: str, **more: object) -> Values:
        return {"setting": setting, "why": why, "remedy": remedy, "command": RECONFIGURE, **more}

    if facts.user == "root" and facts.dialect is Dialect.VOLCLAVA:
        remedy = "an ordinary account for the daemon (User= of its service)"
        why, ours = "volclava refuses jobs of root", "systemctl edit bftrainer"
        yield refused("the daemon runs as root", why, remedy, command=ours)
    elif not pilots.may_submit(facts.user):
        yield refused(
            f"USERS of {name}: {' '.join(pilots.users)}",
            f"{facts.user}, who submits pilots, is not among them (an administrator of LSF may "
            "submit all the same)",
            f"lsb.queues, {name}: USERS = {' '.join((*pilots.users, facts.user))}",
            **{WEIGHT: Weight.LOSS},
        )
    if not status.startswith("Open"):
        opens = f"badmin qopen {name}"
        yield refused(f"{name} is {status}", "it is closed", opens, command=opens)
    elif not status.endswith(":Active"):
        wakes = f"badmin qact {name}"
        yield refused(f"{name} is {status}", "it dispatches nothing now", wakes, command=wakes)


def _can_preempt(other: Queue, pilots: Queue) -> bool:
    """Return whether either queue says so: a preemptable one needs no preemptive one."""
    return _includes(_PREEMPTABLE, pilots.preemption, other.name) or _includes(
        _PREEMPTIVE, other.preemption, pilots.name
    )


def _includes(word: re.Pattern[str], text: str, name: str) -> bool:
    """Return whether a policy with that word includes a queue; without names, it does all."""
    matches = list(word.finditer(text))
    lists = [match[1] for match in matches if match[1]]
    if not lists:
        return bool(matches)
    for queue in " ".join(lists).split():
        queue_name, _, _ = queue.partition("+")
        if queue_name == name:
            return True
    return False


def _preemption(facts: Facts) -> Holds:
    """Check what delays preemption by LSF 10.1, or exempts pilots from it."""
    minutes = facts.number("NO_PREEMPT_INTERVAL") or 0.0
    needs_exclusive = any("EXCLUSIVE" in q.policies for q in facts.others)
    is_locked = facts.conf is not None and not facts.is_on("LSB_DISABLE_LIMLOCK_EXCL")
    is_warned = facts.conf is None or facts.is_on("LSB_USE_SEQUENTIAL_SIGNAL")
    why = "LSB_USE_SEQUENTIAL_SIGNAL tells whether a preempted pilot is warned before KILL."
    unread = {"why": why, "cost": "lsf.conf cannot be read"}
    return {
        "delay": _delays(facts),
        "interval": [{"minutes": minutes}] * (minutes > 0),
        "exempt": _exemptions(facts),
        "job_types": _job_types(facts, needs_exclusive=needs_exclusive),
        "exclusive_locks": needs_exclusive and is_locked,
        "no_warning": not is_warned,
        "unread": [unread] * (facts.conf is None),
    }


def _delays(facts: Facts) -> Iterator[Values]:
    """Yield where it is set how long an ordinary job preempts nothing."""
    setting_of = {"lsb.params": facts.parameters}
    for queue in facts.others:
        setting_of[f"lsb.queues, {queue.name}"] = queue.settings
    for where, settings in setting_of.items():
        delay_s = number_of(settings.get("PREEMPT_DELAY", ""))
        if delay_s:
            yield {"delay_s": delay_s, "where": where}


def _exemptions(facts: Facts) -> Iterator[Values]:
    """Yield the parameters by which a pilot can no longer be preempted after a while."""
    queue_settings = _pilot_settings(facts)
    for parameter, when in _EXEMPT.items():
        where, settings = "lsb.params", facts.parameters
        if parameter in queue_settings:  # it counts for the queue instead of the cluster's
            where, settings = f"lsb.queues, {facts.pilot_queue}", queue_settings
        value = number_of(settings.get(parameter, ""))
        if value:
            yield {"parameter": parameter, "value": value, "when": when, "where": where}


def _job_types(facts: Facts, *, needs_exclusive: bool) -> Iterator[Values]:
    """Yield which words PREEMPT_JOBTYPE lacks: pilots backfill, ordinary jobs may be exclusive."""
    types = facts.parameters.get("PREEMPT_JOBTYPE", "").upper().split()
    needs_backfill = facts.pilots is None or "BACKFILL" in facts.pilots.policies
    missing = []
    if needs_backfill and "BACKFILL" not in types:
        missing.append("BACKFILL")
    if needs_exclusive and "EXCLUSIVE" not in types:
        missing.append("EXCLUSIVE")
    if missing:
        yield {
            "types": " ".join(types) or "(not set)",
            "costs": " and ".join(map(_TYPE_COSTS.__getitem__, missing)).capitalize(),
            "needed": " ".join([*(word for word in types if word in _TYPE_COSTS), *missing]),
        }


def _pilot_settings(facts: Facts) -> Mapping[str, str]:
    """Return the settings of the pilots' queue; none: there is no such queue."""
    if facts.pilots is None:
        return {}
    return facts.pilots.settings


def _ending(facts: Facts, measured: Measured) -> Holds:
    """Check how LSF ends a pilot."""
    interval_s, end_s = facts.number("JOB_TERMINATE_INTERVAL") or 0.0, measured.end_s or 0.0
    settings = _pilot_settings(facts)
    terminate, post = settings.get("TERMINATE", "").strip("[] "), settings.get("POST_EXEC", "")
    late = {
        "sleep": facts.parameters.get("SBD_SLEEP_TIME", "not known"),
        "post": f", POST_EXEC = {post}" if post else "",
        "end_s": end_s,
        "promise_s": measured.promise_s,
        "slo_s": end_s + 1,
    }
    interval = {"interval_s": interval_s, "twice_s": 2 * interval_s}
    is_replaced = bool(terminate) and "KILL" not in terminate
    return {
        "terminate_interval": [interval] * (interval_s > USUAL_INTERVAL_S),
        "job_controls": [{"terminate": terminate}] * is_replaced,
        "slow_end": [late] * (measured.end_s is not None and end_s > measured.promise_s),
    }


def _dispatch(facts: Facts) -> Holds:
    """Check how long a free host waits for the next pass of the scheduler."""
    cycle_s = facts.number("MBD_SLEEP_TIME") or 0.0
    weight = Weight.LOSS
    # Where new jobs are dispatched at once, a host of a pilot is the only one that waits.
    starts_at_once = any(q.new_job_delay_s == 0 for q in facts.others)
    if facts.dialect is Dialect.VOLCLAVA and starts_at_once:
        weight = Weight.HARM
    cycle = {WEIGHT: weight, "cycle_s": cycle_s, "usual_cycle_s": USUAL_CYCLE_S}
    n_passes = facts.number("JOB_ACCEPT_INTERVAL") or 0.0
    usual_accept_s = n_passes * (cycle_s or USUAL_CYCLE_S)
    intervals_s = (q.accept_s for q in facts.others if q.accept_s is not None)
    accept_s = max(intervals_s, default=usual_accept_s)
    return {
        "slow_cycle": [cycle] * (cycle_s > USUAL_CYCLE_S),
        "accept_interval": [{"accept_s": accept_s}] * (accept_s > 0),
    }
