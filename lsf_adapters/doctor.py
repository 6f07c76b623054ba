"""The cost of LSF's settings, and whether LSF itself ends a pilot for an ordinary job. Pure.

Called by the adapter. volclava has no preemption. Sources: lsb.queues(5) and lsb.params(5) of LSF
10.1, "preemptive scheduling"; documented, not tried.

Figures called measured are of volclava 2.2 with one job per host, at
MBD_SLEEP_TIME=2 and 10; what only IBM's LSF 10.1 has is from its documentation and was not tried.
docs/howto/lsf-site.md has the same settings in one place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bftrainer.model.site import NOTHING, Finding, Measured, Weight
from lsf_adapters.commands import Dialect
from lsf_adapters.queues import Facts, Queue, number_of

_LIST = r"\b{}\b(?:\s*[\[(]([^\])]*)[\])])?"
_PREEMPTABLE = re.compile(_LIST.format("PREEMPTABLE"))
_PREEMPTIVE = re.compile(_LIST.format("PREEMPTIVE"))
_NEVER_AGAIN = ("MAX_JOB_PREEMPT", "MAX_TOTAL_TIME_PREEMPT")
_NOT_NOW = ("NO_PREEMPT_RUN_TIME", "NO_PREEMPT_FINISH_TIME")


def preemption(facts: Facts) -> Iterator[Finding]:
    """Check the settings of preemption."""
    yield from _order(facts)
    pilots = facts.pilots
    if facts.dialect is not Dialect.IBM:
        if pilots is not None:
            yield _none(
                "volclava has no preemption",
                "lease_s: 300 in the policy: agents without a daemon leave this soon",
            )
        return
    if pilots is not None:
        if left := [q for q in facts.others if not _can_preempt(q, pilots)]:
            names = ", ".join(sorted(q.name for q in left))
            yield _none(
                f"no job of {names} preempts {facts.pilot_queue}",
                f"lsb.queues, {facts.pilot_queue}: PREEMPTION = PREEMPTABLE",
            )
        elif facts.others and "PREEMPT" not in pilots.settings.get("TERMINATE_WHEN", ""):
            yield _suspended(facts.pilot_queue)
    yield from _late(facts)
    yield from _exempt(facts)
    yield from _kinds(facts)


def _order(facts: Facts) -> Iterator[Finding]:
    if facts.pilots is None:
        return
    own = facts.pilots.priority
    below = sorted(q.name for q in facts.others if q.priority <= own)
    if not below:
        return
    lowest = min(q.priority for q in facts.others)
    remedy = f"lsb.queues, {facts.pilot_queue}: PRIORITY = {lowest - 1}"
    if lowest <= 1:  # a priority is 1 at least
        remedy = f"lsb.queues, {', '.join(below)}: PRIORITY above {own}"
    yield Finding(
        code="BFT-1297",
        weight=Weight.HARM,
        setting=f"PRIORITY of {', '.join(below)} is not above {own}, that of {facts.pilot_queue}",
        cost="Jobs of these queues wait behind pilots and cannot preempt them.",
        remedy=remedy,
    )


def _can_preempt(other: Queue, pilots: Queue) -> bool:
    """Return whether either queue says so: a preemptable one needs no preemptive one."""
    if other.priority <= pilots.priority:
        return True  # BFT-1297 says that
    return _includes(_PREEMPTABLE, pilots.preemption, other.name) or _includes(
        _PREEMPTIVE, other.preemption, pilots.name
    )


def _includes(word: re.Pattern[str], text: str, name: str) -> bool:
    found = list(word.finditer(text))
    named = [one[1].split() for one in found if one[1]]
    if not found or not named:
        return bool(found)
    return any(name == one.partition("+")[0] for names in named for one in names)


def _none(why: str, remedy: str) -> Finding:
    return Finding(
        code="BFT-1292",
        weight=Weight.HARM,
        setting=why,
        cost="LSF never ends a pilot for an ordinary job: the safety net is missing. When daemon "
        "and agent both fail, a job waits until the pilot's time limit, or until the agents give "
        "the daemon up (lease_s).",
        remedy=remedy,
    )


def _suspended(name: str) -> Finding:
    return Finding(
        code="BFT-1293",
        weight=Weight.HARM,
        setting=f"{name} without TERMINATE_WHEN = PREEMPT",
        cost="A preempted pilot is suspended, LSF's default: it keeps the host's memory and GPUs, "
        "and ordinary jobs run beside it.",
        remedy=f"lsb.queues, {name}: TERMINATE_WHEN = PREEMPT",
    )


def _late(facts: Facts) -> Iterator[Finding]:
    said = [("lsb.params", facts.parameters.get("PREEMPT_DELAY", ""))]
    said += [
        (f"lsb.queues, {q.name}", q.settings["PREEMPT_DELAY"])
        for q in facts.others
        if "PREEMPT_DELAY" in q.settings
    ]
    for where, value in said:
        if delay_s := number_of(value) or 0.0:
            yield Finding(
                code="BFT-1294",
                weight=Weight.HARM,
                setting=f"PREEMPT_DELAY = {delay_s:g}",
                cost=f"An ordinary job preempts nothing in its first {delay_s:g} s (documented).",
                remedy=f"{where}: remove PREEMPT_DELAY",
            )
    if minutes := facts.number("NO_PREEMPT_INTERVAL") or 0.0:
        yield Finding(
            code="BFT-1294",
            weight=Weight.HARM,
            setting=f"NO_PREEMPT_INTERVAL = {minutes:g}",
            cost=f"A pilot cannot be preempted in its first {minutes:g} minutes (documented); "
            "queues with such a guarantee are no use for giving nodes back.",
            remedy="lsb.params: remove NO_PREEMPT_INTERVAL",
        )


def _exempt(facts: Facts) -> Iterator[Finding]:
    own = facts.pilots.settings if facts.pilots else {}
    for name in (*_NEVER_AGAIN, *_NOT_NOW):
        value = number_of(own.get(name, facts.parameters.get(name, "")))
        if not value:
            continue
        when = "has been preempted so often" if name in _NEVER_AGAIN else "has run so long"
        if name == "NO_PREEMPT_FINISH_TIME":
            when = "is to end so soon"
        where = f"lsb.queues, {facts.pilot_queue}" if name in own else "lsb.params"
        yield Finding(
            code="BFT-1295",
            weight=Weight.HARM,
            setting=f"{name} = {value:g}",
            cost=f"A pilot that {when} can no longer be preempted (documented).",
            remedy=f"{where}: remove {name}",
        )


def _kinds(facts: Facts) -> Iterator[Finding]:
    """Check PREEMPT_JOBTYPE: pilots backfill, and ordinary jobs may be exclusive."""
    said = facts.parameters.get("PREEMPT_JOBTYPE", "").upper().split()
    needs_exclusive = any("EXCLUSIVE" in q.policies for q in facts.others)
    backfills = facts.pilots is None or "BACKFILL" in facts.pilots.policies
    needed = {"BACKFILL": backfills, "EXCLUSIVE": needs_exclusive}
    missing = [word for word, is_needed in needed.items() if is_needed and word not in said]
    costs = {
        "BACKFILL": "a pilot, which may have backfilled, is preempted in special cases only",
        "EXCLUSIVE": "exclusive jobs (bsub -x) preempt no pilot on the host they want",
    }
    if missing:
        kept = [word for word in said if word in needed]
        yield Finding(
            code="BFT-1235",
            weight=Weight.HARM,
            setting=f"PREEMPT_JOBTYPE = {' '.join(said) or '(not set)'}",
            cost=f"{' and '.join(costs[word] for word in missing)} (documented).".capitalize(),
            remedy=f"lsb.params: PREEMPT_JOBTYPE = {' '.join([*kept, *missing])}",
        )
    if needs_exclusive and facts.conf is not None and not facts.is_on("LSB_DISABLE_LIMLOCK_EXCL"):
        yield Finding(
            code="BFT-1235",
            weight=Weight.HARM,
            setting="LSB_DISABLE_LIMLOCK_EXCL is not Y",
            cost="Exclusive jobs (bsub -x) preempt no pilot on the host they want (documented).",
            remedy="lsf.conf: LSB_DISABLE_LIMLOCK_EXCL=Y",
        )


NOT_KNOWN = "lsid names neither IBM Spectrum LSF 10.1 nor volclava 2."
USUAL_CYCLE_S = 10.0  # MBD_SLEEP_TIME that the installers set
USUAL_INTERVAL_S = 10.0  # default of JOB_TERMINATE_INTERVAL
USUAL_PILOT_S = 14_400.0  # default of the policy's pilot_time_limit_s


def findings(facts: Facts, measured: Measured = NOTHING) -> tuple[Finding, ...]:
    """Return all deviations from docs/howto/lsf-site.md, worst first."""
    if facts.dialect is Dialect.UNKNOWN:
        return (unknown(NOT_KNOWN),)
    found = [
        *_queue(facts),
        *preemption(facts),
        *_ending(facts),
        *_slow_end(facts, measured),
        *_dispatch(facts),
        *_told(facts),
    ]
    order = list(Weight)
    return tuple(sorted(found, key=lambda f: (order.index(f.weight), f.code)))


def unknown(why: str, *, cost: str = "They could not be read") -> Finding:
    """Return the finding that settings could not be read."""
    return Finding(
        code="BFT-1238",
        weight=Weight.UNKNOWN,
        setting="LSF's settings",
        cost=f"{cost}: {why}",
        remedy="Run the doctor again when lsid, bqueues -l and bparams -l answer.",
    )


def _queue(facts: Facts) -> Iterator[Finding]:
    """Check that pilots get into their queue, and out of it onto hosts."""
    name, pilots = facts.pilot_queue, facts.pilots
    where = f"lsb.queues, {name}"
    if pilots is None:
        yield Finding(
            code="BFT-1291",
            weight=Weight.LOSS,
            setting=f"QUEUE_NAME = {name}",
            cost="There is no such queue, so no pilot can be submitted.",
            remedy="lsb.queues: as bftrainer site init --batch-system lsf prints it",
        )
        return
    yield from _closed(facts, pilots)
    if "BACKFILL" not in pilots.policies:
        yield Finding(
            code="BFT-1298",
            weight=Weight.LOSS,
            setting=f"{name} without BACKFILL",
            cost="Slots reserved for a waiting parallel job stay idle: only a queue with BACKFILL "
            "gets a pilot onto them (measured).",
            remedy=f"{where}: BACKFILL = Y",
        )
    limit_s = pilots.limit_max_s
    if limit_s is not None and limit_s < USUAL_PILOT_S:
        yield Finding(
            code="BFT-1299",
            weight=Weight.LOSS,
            setting=f"RUNLIMIT of {name}: {limit_s / 60:g} minutes",
            cost="bsub refuses every longer pilot, and by default a pilot may stay "
            f"{USUAL_PILOT_S / 60:g} minutes (pilot_time_limit_s).",
            remedy=f"{where}: RUNLIMIT = 10 {USUAL_PILOT_S / 60:g}, or pilot_time_limit_s: "
            f"{limit_s:g} in the policy",
        )
    is_rerun = pilots.settings.get("RERUNNABLE", "no").lower().startswith("y")
    if is_rerun and facts.dialect is not Dialect.IBM:  # there bsub -rn overrides it
        yield Finding(
            code="BFT-1239",
            weight=Weight.LOSS,
            setting=f"RERUNNABLE of {name}: yes",
            cost="LSF queues the pilots of a lost host again; they end at once when they start, "
            "but wait for hosts until then.",
            remedy=f"{where}: RERUNNABLE = NO",
        )


def _closed(facts: Facts, pilots: Queue) -> Iterator[Finding]:
    name, status = facts.pilot_queue, pilots.status
    if facts.user == "root" and facts.dialect is Dialect.VOLCLAVA:
        yield _refused(
            "the daemon runs as root",
            "volclava refuses jobs of root",
            "an ordinary account for the daemon (User= of its service)",
        )
    elif not pilots.may_submit(facts.user):
        yield _refused(
            f"USERS of {name}: {' '.join(pilots.users)}",
            f"{facts.user}, who submits pilots, is not among them (an administrator of LSF may "
            "submit all the same)",
            f"lsb.queues, {name}: USERS = {' '.join((*pilots.users, facts.user))}",
        )
    if not status.startswith("Open"):
        yield _refused(f"{name} is {status}", "it is closed", f"badmin qopen {name}")
    elif not status.endswith(":Active"):
        yield _refused(f"{name} is {status}", "it dispatches nothing now", f"badmin qact {name}")


def _refused(setting: str, why: str, remedy: str) -> Finding:
    return Finding(
        code="BFT-1240",
        weight=Weight.LOSS,
        setting=setting,
        cost=f"No pilot starts: {why}.",
        remedy=remedy,
    )


def _ending(facts: Facts) -> Iterator[Finding]:
    """Check how LSF ends a pilot."""
    name, interval_s = facts.pilot_queue, facts.number("JOB_TERMINATE_INTERVAL")
    if interval_s is not None and interval_s > USUAL_INTERVAL_S:
        yield Finding(
            code="BFT-1237",
            weight=Weight.LOSS,
            setting=f"JOB_TERMINATE_INTERVAL = {interval_s:g}",
            cost="A pilot that hangs gets INT, TERM and KILL this far apart and keeps its host "
            f"{2 * interval_s:g} s (22 s at 10, measured); ours end at the first signal.",
            remedy="lsb.params: JOB_TERMINATE_INTERVAL = 5",
        )
    shown = facts.pilots.settings.get("TERMINATE", "").strip("[] ") if facts.pilots else ""
    if shown and "KILL" not in shown:
        yield Finding(
            code="BFT-1237",
            weight=Weight.HARM,
            setting=f"JOB_CONTROLS of {name}: TERMINATE[{shown}]",
            cost="This replaces INT, TERM and KILL (measured): LSF can never end a pilot that "
            "hangs.",
            remedy=f"lsb.queues, {name}: remove JOB_CONTROLS",
        )
    if facts.dialect is not Dialect.IBM:
        return
    if facts.conf is None:
        yield unknown(
            "LSB_USE_SEQUENTIAL_SIGNAL tells whether a preempted pilot is warned before KILL.",
            cost="lsf.conf cannot be read",
        )
    elif not facts.is_on("LSB_USE_SEQUENTIAL_SIGNAL"):
        yield Finding(
            code="BFT-1237",
            weight=Weight.LOSS,
            setting="LSB_USE_SEQUENTIAL_SIGNAL is not Y",
            cost="LSF ends parallel jobs, so pilots, with KILL alone (documented): trainers lose "
            "a preempted node without warning, and the step in flight.",
            remedy="lsf.conf: LSB_USE_SEQUENTIAL_SIGNAL=Y",
        )


def _slow_end(facts: Facts, measured: Measured) -> Iterator[Finding]:
    end_s = measured.end_s
    if end_s is None or end_s <= measured.promise_s:
        return
    shown = facts.parameters.get("SBD_SLEEP_TIME", "not known")
    post = facts.pilots.settings.get("POST_EXEC", "") if facts.pilots else ""
    yield Finding(
        code="BFT-1237",
        weight=Weight.HARM,
        setting=f"SBD_SLEEP_TIME = {shown}" + (f", POST_EXEC = {post}" if post else ""),
        cost=f"A host is usable {end_s:.1f} s after its pilot was asked to leave (measured here), "
        f"but {measured.promise_s:g} s are promised: LSF looks for ended jobs this rarely, and "
        "runs POST_EXEC before it gives the host to others.",
        remedy=f"lsb.params: SBD_SLEEP_TIME = 2, or harm_slo_s: {end_s + 1:.0f} in the policy",
    )


def _dispatch(facts: Facts) -> Iterator[Finding]:
    """Check how long a free host waits for the next pass of the scheduler."""
    cycle_s = facts.number("MBD_SLEEP_TIME")
    if cycle_s is not None and cycle_s > USUAL_CYCLE_S:
        # Where new jobs are dispatched at once, a host of a pilot is the only one that waits.
        at_once = [q for q in facts.others if q.new_job_delay_s == 0]
        is_harm = facts.dialect is Dialect.VOLCLAVA and bool(at_once)
        yield Finding(
            code="BFT-1236",
            weight=Weight.HARM if is_harm else Weight.LOSS,
            setting=f"MBD_SLEEP_TIME = {cycle_s:g}",
            cost="A host that a pilot has left is given to a job in the next pass: 2 s later at "
            f"MBD_SLEEP_TIME=2 (measured), up to {cycle_s:g} s here; pilots start as late.",
            remedy=f"lsb.params: MBD_SLEEP_TIME = {USUAL_CYCLE_S:g}",
        )
    interval = facts.number("JOB_ACCEPT_INTERVAL")
    waits = [q.accept_s for q in facts.others if q.accept_s is not None]
    accept_s = max(waits) if waits else (interval or 0.0) * (cycle_s or USUAL_CYCLE_S)
    if accept_s > 0:
        yield Finding(
            code="BFT-1236",
            weight=Weight.HARM,
            setting=f"JOB_ACCEPT_INTERVAL: {accept_s:g} s",
            cost="A host accepts no second job for so long: an ordinary job waits up to "
            f"{accept_s:g} s for a host whose pilot has just started.",
            remedy="lsb.params: JOB_ACCEPT_INTERVAL = 0",
        )


def _told(facts: Facts) -> Iterator[Finding]:
    if not facts.why_not_told:
        return
    yield Finding(
        code="BFT-1296",
        weight=Weight.HARM,
        setting=facts.why_not_told.rstrip("."),
        cost="Jobs are noticed by polling, a second late, and not 0.1 to 0.4 s after bsub was "
        "called (measured): a pilot that leaves just after a pass of the scheduler costs its job "
        "another one (MBD_SLEEP_TIME). Polls are more frequent, too.",
        remedy="batch_options: events_file: LSB_SHAREDIR/CLUSTER/logdir/lsb.events, readable by "
        f"{facts.user}",
    )
