"""Finds settings that keep LSF itself from ending a pilot for an ordinary job. Pure.

Called by ``doctor``. volclava has no preemption. Sources: lsb.queues(5) and lsb.params(5) of LSF
10.1, "preemptive scheduling"; documented, not tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from bftrainer.model.site import Finding, Weight
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
