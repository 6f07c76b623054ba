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
    candidates = (
        _queue(facts),
        _lines(facts, "lsb.params: ", PARAMS_NAME, f"{configdir(facts)}/lsb.params"),
        _lines(facts, "lsf.conf: ", CONF_NAME, f"{_envdir(options)}/lsf.conf"),
        _esub(facts, options),
    )
    files = [file for file in candidates if file is not None]
    title = _TITLES[facts.dialect]
    doctor_end = "It must end with status 0."
    if facts.dialect is Dialect.VOLCLAVA:
        doctor_end = "BFT-1292 remains: volclava never preempts."
    writes: tuple[str, ...] = ()
    if pilots_dir:
        writes = (str(pilots_dir),)
    service = service_files("lsf", program=program, account=facts.user, after=UNITS, writes=writes)
    steps = [*pilots_steps(pilots_dir, facts.user), *_steps(facts, files, options)]
    settings = [*_settings(facts), *pilots_setting(pilots_dir)]
    return (
        *service,
        *files,
        first_policy(title, settings, {**options, **_events(facts, options)}),
        checklist(title, "lsf", steps, service=service, doctor=doctor_end),
    )


def configdir(facts: Facts) -> str:
    """Return the directory of lsb.queues, as far as it is known."""
    directory = _conf(facts, "LSB_CONFDIR") or "LSB_CONFDIR"
    if facts.dialect is Dialect.VOLCLAVA:  # it has no directories of clusters
        return directory
    return f"{directory}/{facts.cluster}/configdir"


def _conf(facts: Facts, name: str) -> str:
    """Return a value of lsf.conf; "": it has none, or cannot be read."""
    return (facts.conf or {}).get(name, "").strip('"')


def _envdir(options: Mapping[str, Any]) -> str:
    return str(options.get("lsf_envdir", "$LSF_ENVDIR"))


def _queue(facts: Facts) -> SiteFile:
    present = facts.pilots  # the queue as it is now; None: there is none yet
    verb = "append it to"
    priority = min((q.priority for q in facts.others), default=2) - 1
    limit_s = doctor.USUAL_PILOT_S
    users = [facts.user]
    if present:
        verb = f"it replaces the queue {facts.pilot_queue} in"
        priority = min(priority, present.priority)
        limit_s = present.limit_max_s or limit_s
        users = [*present.users, facts.user]
    priority = max(1, priority)
    values = {
        "QUEUE_NAME": facts.pilot_queue,
        "DESCRIPTION": "pilots of bftrainer, on idle hosts only",
        "PRIORITY": str(priority),
        "BACKFILL": "Y",
        "RERUNNABLE": "NO",
        "RUNLIMIT": f"{min(10, limit_s / 60):g} {limit_s / 60:g}",
        "USERS": " ".join(dict.fromkeys(users)),
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
    return SiteFile(
        name=QUEUES_NAME,
        text="\n".join(("Begin Queue", *lines, "End Queue")) + "\n",
        about=f"{verb} {configdir(facts)}/lsb.queues",
    )


def _hosts(facts: Facts) -> str:
    """Return the hosts of the pilots' queue, or those of the default one."""
    model = facts.pilots or next((queue for queue in facts.others if queue.is_default), None)
    if model is None:
        return "all"
    hosts = model.settings.get("HOSTS", "all")
    if hosts.startswith("all"):
        return "all"
    # bqueues(1) marks groups of hosts with a slash.
    return " ".join(word.rstrip("/") for word in hosts.split())


def _lines(facts: Facts, prefix: str, name: str, where: str) -> SiteFile | None:
    """Return the lines of one file that ``doctor`` wants changed; None: none."""
    lines = []
    for finding in doctor.findings(facts):
        if finding.remedy.startswith(prefix):
            line = finding.remedy.removeprefix(prefix)
            if line.startswith("remove "):  # what to do, and no line of the file
                line = f"# {line}"
            lines += [f"# {finding.code}: {finding.cost}", line]
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
    name = script.AFTER
    if facts.dialect is Dialect.VOLCLAVA:  # it has no epsub
        name = script.BEFORE
    directory = _conf(facts, "LSF_SERVERDIR") or "LSF_SERVERDIR"
    return SiteFile(
        name=name,
        text=text,
        about=f'into {directory}, and LSB_ESUB_METHOD="{script.METHOD}" into lsf.conf',
        is_executable=True,
    )


def _settings(facts: Facts) -> list[FirstSetting]:
    rarely_s = facts.number("SBD_SLEEP_TIME") or 7.0  # that of the installers
    why = f"LSF looks for ended jobs every {rarely_s:g} s (SBD_SLEEP_TIME)"
    settings: list[FirstSetting] = [("harm_slo_s", rarely_s + 1.0, why)]
    limit_s: float | None = None
    if facts.pilots:
        limit_s = facts.pilots.limit_max_s
    if limit_s is not None and limit_s < doctor.USUAL_PILOT_S:
        why = f"bsub refuses more (RUNLIMIT of {facts.pilot_queue})"
        settings.append(("pilot_time_limit_s", limit_s, why))
    if facts.dialect is Dialect.VOLCLAVA:
        why = "volclava never preempts: pilots without a daemon leave after this"
        settings.append(("lease_s", LEASE_S, why))
    return settings


def _events(facts: Facts, options: Mapping[str, Any]) -> dict[str, str]:
    """Return where mbatchd writes lsb.events, if that is known."""
    directory = _conf(facts, "LSB_SHAREDIR")
    if {"events_file", "esub_place"} & options.keys() or not directory:
        return {}
    if facts.dialect is not Dialect.VOLCLAVA:  # it has no directories of clusters
        directory += f"/{facts.cluster}"
    return {"events_file": f"{directory}/logdir/lsb.events"}


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
