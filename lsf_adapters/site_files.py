"""The files for an administrator of LSF: the pilots' queue, parameters, a first policy. Pure.

The lines of lsb.params and lsf.conf are those that ``doctor`` asks for. volclava drops a queue with
a line that it does not know (measured), so it gets none about preemption.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bftrainer.batch.service_files import PROGRAM, service_files
from bftrainer.batch.site_inspector import (
    FirstSetting,
    checklist,
    first_policy,
    pilots_setting,
    pilots_steps,
)
from bftrainer.model.hostlist import ParseError
from bftrainer.model.site import SiteFile
from lsf_adapters import doctor
from lsf_adapters.commands import Dialect
from lsf_adapters.notifications import script
from lsf_adapters.queues import Facts

QUEUES_NAME = "lsb.queues.bftrainer"
PARAMS_NAME = "lsb.params.bftrainer"
CONF_NAME = "lsf.conf.bftrainer"
UNITS = ("lsfd.service",)  # where it runs on the daemon's host
LEASE_S = 300.0  # instead of half an hour
_TITLES = {Dialect.IBM: "IBM Spectrum LSF", Dialect.VOLCLAVA: "volclava"}


def site_files(
    facts: Facts,
    options: Mapping[str, Any],
    *,
    program: str = PROGRAM,
    pilots_dir: Path | None = None,
) -> tuple[SiteFile, ...]:
    """Return the files, filled in for this site, the checklist last.

    Args:
        facts: what LSF printed.
        options: of the adapter, as they were given.
        program: ``bftrainer`` on the daemon's host.
        pilots_dir: of the policy, where nodes are other hosts; None: not needed.

    Raises:
        ParseError: nothing is known of this LSF.
    """
    if facts.dialect is Dialect.UNKNOWN:
        raise ParseError(doctor.NOT_KNOWN)
    queue = _queue(facts)
    changed = [
        file
        for file in (
            _lines(facts, "lsb.params: ", PARAMS_NAME, f"{configdir(facts)}/lsb.params"),
            _lines(facts, "lsf.conf: ", CONF_NAME, f"{_envdir(options)}/lsf.conf"),
            _esub(facts, options),
        )
        if file is not None
    ]
    title = _TITLES[facts.dialect]
    is_ibm = facts.dialect is Dialect.IBM
    clean = "It must end with status 0." if is_ibm else "BFT-1292 remains: volclava never preempts."
    writes = (str(pilots_dir),) if pilots_dir else ()
    service = service_files("lsf", program=program, account=facts.user, after=UNITS, writes=writes)
    steps = [
        *pilots_steps(pilots_dir, facts.user),
        *_steps(facts, (queue, *changed), options),
    ]
    settings = [*_settings(facts), *pilots_setting(pilots_dir)]
    return (
        *service,
        queue,
        *changed,
        first_policy(title, settings, {**options, **_events(facts, options)}),
        checklist(title, "lsf", steps, service=service, doctor=clean),
    )


def configdir(facts: Facts) -> str:
    """Return the directory of lsb.queues, as far as it is known."""
    known = (facts.conf or {}).get("LSB_CONFDIR", "").strip('"') or "LSB_CONFDIR"
    # volclava has no directories of clusters.
    return known if facts.dialect is Dialect.VOLCLAVA else f"{known}/{facts.cluster}/configdir"


def _envdir(options: Mapping[str, Any]) -> str:
    return str(options.get("lsf_envdir", "$LSF_ENVDIR"))


def _queue(facts: Facts) -> SiteFile:
    own = facts.pilots
    lowest = min((q.priority for q in facts.others), default=2)
    priority = max(1, min(own.priority if own else lowest - 1, lowest - 1))
    minutes = (own.limit_max_s if own else None) or doctor.USUAL_PILOT_S
    values = {
        "QUEUE_NAME": facts.pilot_queue,
        "DESCRIPTION": "pilots of bftrainer, on idle hosts only",
        "PRIORITY": str(priority),
        "BACKFILL": "Y",
        "RERUNNABLE": "NO",
        "RUNLIMIT": f"{min(10, minutes / 60):g} {minutes / 60:g}",
        "USERS": " ".join(dict.fromkeys((*(own.users if own else ()), facts.user))),
        "HOSTS": _hosts(facts),
    }
    if facts.dialect is Dialect.IBM:
        values |= {"PREEMPTION": "PREEMPTABLE", "TERMINATE_WHEN": "PREEMPT"}
    elif any(q.new_job_delay_s == 0 for q in facts.queues.values()):
        values["NEW_JOB_SCHED_DELAY"] = "0"  # pilots start as soon as other jobs
    width = max(map(len, values))
    lines = [f"{name:<{width}} = {value}" for name, value in values.items()]
    if tied := sorted(q.name for q in facts.others if q.priority <= priority):
        lines.insert(0, f"# Raise PRIORITY of {', '.join(tied)} above {priority} first.")
    verb = "append it to" if own is None else f"it replaces the queue {facts.pilot_queue} in"
    return SiteFile(
        name=QUEUES_NAME,
        text="\n".join(("Begin Queue", *lines, "End Queue")) + "\n",
        about=f"{verb} {configdir(facts)}/lsb.queues",
    )


def _hosts(facts: Facts) -> str:
    """Return the hosts of the pilots' queue, or those of the default one."""
    like = facts.pilots or next((q for q in facts.others if q.is_default), None)
    said = like.settings.get("HOSTS", "all") if like else "all"
    # bqueues(1) marks groups of hosts with a slash.
    return "all" if said.startswith("all") else " ".join(w.rstrip("/") for w in said.split())


def _lines(facts: Facts, prefix: str, name: str, where: str) -> SiteFile | None:
    """Return the lines of one file that ``doctor`` wants changed; None: none."""
    lines = []
    for found in doctor.findings(facts):
        if found.remedy.startswith(prefix):
            line = found.remedy.removeprefix(prefix)
            is_line = not line.startswith("remove ")
            lines += [f"# {found.code}: {found.cost}", line if is_line else f"# {line}"]
    if not lines:
        return None
    return SiteFile(name=name, text="\n".join(lines) + "\n", about=f"put its lines into {where}")


def _esub(facts: Facts, options: Mapping[str, Any]) -> SiteFile | None:
    """Return the script that tells of submissions where ``esub_place`` is an option."""
    if "esub_place" not in options:
        return None
    try:
        text = script.script(Path(str(options["esub_place"])))
    except ValueError as problem:
        raise ParseError(f"esub_place: {problem}.") from problem
    # volclava has no epsub.
    name = script.BEFORE if facts.dialect is Dialect.VOLCLAVA else script.AFTER
    known = (facts.conf or {}).get("LSF_SERVERDIR", "").strip('"') or "LSF_SERVERDIR"
    return SiteFile(
        name=name,
        text=text,
        about=f'into {known}, and LSB_ESUB_METHOD="{script.METHOD}" into lsf.conf',
        is_executable=True,
    )


def _settings(facts: Facts) -> list[FirstSetting]:
    rarely_s = facts.number("SBD_SLEEP_TIME") or 7.0  # that of the installers
    limit_s = facts.pilots.limit_max_s if facts.pilots else None
    why = f"LSF looks for ended jobs every {rarely_s:g} s (SBD_SLEEP_TIME)"
    found: list[FirstSetting] = [("harm_slo_s", rarely_s + 1.0, why)]
    if limit_s is not None and limit_s < doctor.USUAL_PILOT_S:
        why = f"bsub refuses more (RUNLIMIT of {facts.pilot_queue})"
        found.append(("pilot_time_limit_s", limit_s, why))
    if facts.dialect is Dialect.VOLCLAVA:
        why = "volclava never preempts: pilots without a daemon leave after this"
        found.append(("lease_s", LEASE_S, why))
    return found


def _events(facts: Facts, options: Mapping[str, Any]) -> dict[str, str]:
    """Return where mbatchd writes lsb.events, if that is known."""
    shared = (facts.conf or {}).get("LSB_SHAREDIR", "").strip('"')
    if {"events_file", "esub_place"} & options.keys() or not shared:
        return {}
    where = shared if facts.dialect is Dialect.VOLCLAVA else f"{shared}/{facts.cluster}"
    return {"events_file": f"{where}/logdir/lsb.events"}


def _steps(facts: Facts, files: Sequence[SiteFile], options: Mapping[str, Any]) -> list[str]:
    steps = [
        (
            f"The account {facts.user} runs daemon, pilots and trainers. For another one repeat "
            "this with `--batch-option user=NAME`."
        ),
        *(f"`{file.name}`: {file.about}." for file in files),
    ]
    steps += [
        (
            '`badmin ckconfig` must print "No errors found." (volclava: "No fatal errors found."): '
            "LSF ignores a line that it does not know, and may drop the whole queue."
        ),
        f"`badmin reconfig`, then `bqueues -l {facts.pilot_queue}`.",
    ]
    if any(file.name == CONF_NAME for file in files):
        steps.append("For lsf.conf: `badmin mbdrestart`, and restart every sbatchd.")
    if events := {**options, **_events(facts, options)}.get("events_file"):
        steps.append(
            f"{facts.user} must be able to read {events}, as all can where LSF was installed with "
            f"its defaults. Else `setfacl -m u:{facts.user}:rx {Path(events).parent}` and `setfacl "
            f"-d -m u:{facts.user}:r {Path(events).parent}`, as LSF begins a new file now and then."
        )
    if place := options.get("esub_place"):
        steps.append(
            f"`mkdir -m {script.PLACE_MODE:o} {place}` and `chown {facts.user} {place}`, where "
            "every submission host sees it."
        )
    return [*steps, "The rest is for the daemon's host, which needs LSF's commands."]
