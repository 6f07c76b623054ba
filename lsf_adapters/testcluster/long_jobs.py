"""bjobs -l and -UF: everything about a job in sentences.

LSF 10.1 breaks the lines of -l at 80 columns; -UF, and volclava, do not.
"""

from __future__ import annotations

from collections.abc import Sequence

from lsf_adapters.testcluster import moments
from lsf_adapters.testcluster.config import MASTER, LsfConfig
from lsf_adapters.testcluster.state import Job
from lsf_adapters.testcluster.texts import THRESHOLDS

_RULE = "-" * 78


def listing(
    config: LsfConfig, jobs: Sequence[Job], *, is_unformatted: bool, has_hosts: bool
) -> str:
    """Return the listings of all jobs."""
    if not jobs:
        return ""
    parts = [_job(config, job, is_unformatted, has_hosts) for job in jobs]
    body = f"\n{_RULE}\n\n".join(parts)
    return f"\n{body}\n\n"


def reasons(job: Job, *, has_hosts: bool) -> list[str]:
    """Return why a job waits: with the hosts, or their number."""
    sentences = []
    for text, *names in job.pending_reasons:
        hosts = f"{len(names)} hosts"
        if has_hosts:
            hosts = ", ".join(names)
        elif len(names) <= 1:
            hosts = f"{len(names)} host"
        sentences.append(f"{text}: {hosts}")
    return sentences


def suspension(job: Job) -> str:
    """Return why a job is suspended."""
    if job.stop_reason == "preempt":
        return "Job was preempted by another job"
    return "The job was suspended by user"


def _job(config: LsfConfig, job: Job, is_unformatted: bool, has_hosts: bool) -> str:
    wraps = config.is_ibm and not is_unformatted
    year = config.parameters.display_year
    lines = _head(config, job, is_unformatted, year)
    limit_text = f"{moments.minutes(job.limit_s or 0.0)} min"
    limit = ["", f" {'RUNLIMIT':<24}", f" {limit_text:<24}"]
    story = _story(config, job, is_unformatted, year)
    has_limit = job.limit_s is not None and not job.is_finished
    if has_limit and not is_unformatted:
        lines += limit
    lines += story
    if has_limit and is_unformatted:
        lines += limit
    if job.is_pending and job.pending_reasons:
        lines.append(" PENDING REASONS:")
        lines += [f" {text};" for text in reasons(job, has_hosts=has_hosts)]
    if job.start_s is not None and job.hosts and job.state != "UNKWN":
        lines += ["", " MEMORY USAGE:", " MAX MEM: 4 Mbytes;  AVG MEM: 4 Mbytes"]
    if job.state in ("USUSP", "SSUSP"):
        lines += [" SUSPENDING REASONS:", f" {suspension(job)};"]
    if wraps:
        lines = list(map(_wrapped, lines))
    text = "\n".join(lines)
    requirement = _requirement(job)
    effective = requirement if job.hosts else "-"
    return (
        f"{text}\n\n SCHEDULING PARAMETERS:\n{THRESHOLDS}\n RESOURCE REQUIREMENT DETAILS:"
        f"\n Combined: {requirement}\n Effective: {effective}"
    )


def _requirement(job: Job) -> str:
    kind = "any" if job.ask_hosts else "local"
    return f"select[type == {kind}] order[r15s:pg] {job.res_req}".strip()


def _head(config: LsfConfig, job: Job, is_unformatted: bool, year: bool) -> list[str]:
    name = ""
    if job.is_named:
        name = f" Job Name <{job.name}>,"
    first = (
        f"Job <{job.key}>,{name} User <{job.user}>, Project <{job.project}>, "
        f"Status <{job.state}>, Queue <{job.queue}>, Command <{job.command}>"
    )
    slots = str(job.min_slots)
    if job.max_slots > job.min_slots:
        slots = f"{job.min_slots}-{job.max_slots}"
    size = f"{slots} Processors Requested"
    if is_unformatted or config.is_ibm:
        size = f"{slots} Task(s)"
    cwd = job.cwd
    is_in_home = job.cwd == job.home or job.cwd.startswith(job.home.rstrip("/") + "/")
    if is_in_home and job.home != "/":
        cwd = "$HOME" + job.cwd[len(job.home) :]
    term_s, begin_s = job.term_s, job.begin_s
    details = (
        (begin_s is not None, f"Specified Start Time <{_date(begin_s, year)}>"),
        (term_s is not None, f"Specified Termination Time <{_date(term_s, year)}>"),
        (True, f"CWD <{cwd}>"),
        (bool(job.input), f"Input File <{job.input}>"),
        (bool(job.output), f"Output File <{job.output}>"),
        (bool(job.error), f"Error File <{job.error}>"),
        (job.is_rerunnable, "Re-runnable"),
        (job.is_exclusive, "Exclusive Execution"),
        (bool(job.dependency), f"Dependency Condition <{job.dependency}>"),
        (job.max_slots > 1, size),
        (bool(job.res_req), f"Requested Resources <{job.res_req}>"),
        (bool(job.ask_hosts), "Specified Hosts " + ", ".join(map("<{}>".format, job.ask_hosts))),
    )
    hold = " with hold" if job.is_held else ""
    request = ", ".join(text for is_so, text in details if is_so)
    date = _date(job.submit_s, year)
    return [first, f"{date}: Submitted from host <{MASTER}>{hold}, {request};"]


def _date(moment_s: float | None, year: bool) -> str:
    if moment_s is None:
        return ""
    return moments.long(moment_s, has_year=year)


def _story(config: LsfConfig, job: Job, is_unformatted: bool, year: bool) -> list[str]:
    lines: list[str] = []
    if job.reserved:
        names = " ".join(map("<{}>".format, job.reserved))
        since = _date(job.reserved_s or job.submit_s, year)
        lines.append(f"{since}: Reserved <{len(job.reserved)}> job slots on host(s) {names};")
        if job.estimate_s is not None:
            lines.append(f"{_date(job.estimate_s, year)}: Will be started;")
    if job.start_s is None or not job.hosts:
        return [*lines, *_end(job, year)]
    names = " ".join(map("<{}>".format, job.hosts))
    count = len(job.hosts)
    if config.is_ibm or is_unformatted:
        started = (
            f"Started {count} Task(s) on Host(s) {names}, "
            f"Allocated {count} Slot(s) on Host(s) {names}"
        )
    elif count > 1:
        started = f"Started on {count} Hosts/Processors {names}"
    else:
        started = f"Started on {names}"
    if job.state != "UNKWN":
        started += f", Execution Home <{job.home}>, Execution CWD <{job.cwd}>"
    lines.append(f"{_date(job.start_s, year)}: {started};")
    if not job.is_finished and job.state != "UNKWN":
        usage = f"{_date(job.start_s, year)}: Resource usage collected."
        if is_unformatted:
            memory = "MEM: 4 Mbytes SWAP: 10 Mbytes"
            lines.append(f"{usage} {memory}; PGID: {job.pid}; PIDs: {job.pid};")
        else:
            pad = " " * 21
            lines += [usage, f"{pad}MEM: 4 Mbytes;  SWAP: 10 Mbytes"]
            lines.append(f"{pad}PGID: {job.pid};  PIDs: {job.pid} ")
    return [*lines, *_end(job, year)]


def _end(job: Job, year: bool) -> list[str]:
    if not job.is_finished:
        return []
    cpu = "The CPU time used is 0.0 seconds."
    when = _date(job.end_s, year)
    if job.state == "DONE":
        return [f"{when}: Done successfully. {cpu}"]
    lines = [f"{when}: Exited with exit code {job.exit_code}. {cpu}"]
    if not job.hosts:
        lines = [f"{when}: Exited;"]
    if job.exit_reason:
        reason = f"{job.exit_reason}: job killed."
        if job.hosts:
            lines.append(reason)
        else:
            lines[0] += f" {reason}"
    return lines


def _wrapped(line: str) -> str:
    """Break a line as bjobs -l does: at 80 columns, anywhere, continued under the text."""
    if len(line) <= 79:
        return line
    lines = [line[:79]]
    lines += [" " * 21 + line[begin : begin + 58] for begin in range(79, len(line), 58)]
    return "\n".join(lines)
