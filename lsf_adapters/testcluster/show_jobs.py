"""bjobs: the selected jobs, in one of its forms."""

from __future__ import annotations

from lsf_adapters.testcluster import arguments, job_fields, long_jobs, moments, output, selection
from lsf_adapters.testcluster.arguments import Arguments
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.config import MASTER
from lsf_adapters.testcluster.request import Answer, Request
from lsf_adapters.testcluster.state import Job

_USAGE = 'Usage: bjobs [options] [jobId | "jobId[idxList]" ...]\n'
_HEADER = "JOBID   USER    STAT  QUEUE      FROM_HOST   EXEC_HOST   JOB_NAME   SUBMIT_TIME"
_PENDING_HEADER = (
    "JOBID   USER    STAT  QUEUE       FROM_HOST      JOB_NAME           SUBMIT_TIME\n"
)
_WIDER = "  PROJ_NAME CPU_USED MEM SWAP PIDS START_TIME FINISH_TIME"
_FLAGS = {*"alwpsrdAhVx", "UF", "W", "json", "sum", "X", "ss", "plan", "G0"}
_IBM_FLAGS = _FLAGS | {"noheader", "cname", "aff", "rusage", "hostfile", "psum", "pi", "pe"}
_VALUED = {*"uqJmPNo", "app", "g", "G", "sla", "Lp"}


def bjobs(batch: Batch, request: Request) -> Answer:
    """Answer bjobs."""
    is_ibm = batch.config.is_ibm
    found = arguments.read(
        request.argv, flags=_IBM_FLAGS if is_ibm else _FLAGS, valued=_VALUED, usage=_USAGE
    )
    if "json" in found.flags and "o" not in found.values:
        return Answer(status=255, err=_USAGE)
    if "o" in found.values:
        _format(found, is_ibm=is_ibm)  # a wrong field is refused, whether or not there are jobs
    queue = found.values.get("q")
    if queue is not None and queue not in batch.queue_of:
        return Answer(status=255, err=f"{queue}: No such queue\n")
    specs = [arguments.job_spec(word) for word in found.words if word != "0"]
    jobs: list[Job] = []
    unknown: list[str] = []
    for spec in specs:
        these = selection.of_spec(batch, spec)
        jobs += these
        if not these:
            unknown.append(spec.text)
    if not specs:
        every = batch.jobs if found.flags & {"a", "d"} else batch.live
        jobs = [
            job
            for job in every.values()
            if selection.matches(job, found, request.user) and selection.has_state(job, found)
        ]
    jobs = selection.in_order(batch, jobs)
    answer = Answer()
    if "json" not in found.flags:
        for text in unknown:
            answer.err += f"Job <{text}> is not found\n"
            answer.status = 255
    if jobs or "json" in found.flags:
        _show(batch, found, jobs, unknown, answer)
    elif not specs:
        answer.err, answer.status = _nothing(found), 254
    return answer


def _nothing(found: Arguments) -> str:
    if "J" in found.values:
        return f"Job <{found.values['J']}> is not found\n"
    kinds = {"a": "", "d": " DONE/EXIT", "p": " pending", "r": " running", "s": " suspended"}
    kind = next((text for letter, text in kinds.items() if letter in found.flags), " unfinished")
    where = f" in queue <{found.values['q']}>" if "q" in found.values else ""
    return f"No{kind} job found{where}\n"


def _show(
    batch: Batch, found: Arguments, jobs: list[Job], unknown: list[str], answer: Answer
) -> None:
    if "o" in found.values:
        _show_fields(batch, found, jobs, unknown, answer)
    elif found.flags & {"l", "UF"}:
        answer.out = long_jobs.listing(
            batch.config,
            jobs,
            is_unformatted="UF" in found.flags,
            has_hosts="p" in found.flags,
        )
    elif "A" in found.flags:
        answer.out = _arrays(jobs)
    elif "p" in found.flags:
        answer.out = _PENDING_HEADER + "".join(map(_pending_row, jobs))
    else:
        answer.out = _rows(found, jobs)


def _format(found: Arguments, *, is_ibm: bool) -> output.Format:
    widths = job_fields.IBM if is_ibm else job_fields.VOLCLAVA
    return output.read_format(found.values["o"], widths, is_ibm=is_ibm)


def _show_fields(
    batch: Batch, found: Arguments, jobs: list[Job], unknown: list[str], answer: Answer
) -> None:
    is_ibm, is_json = batch.config.is_ibm, "json" in found.flags
    form = _format(found, is_ibm=is_ibm)
    names = [column.name for column in form.columns]
    if is_ibm:
        fields = job_fields.IbmFields(batch.config, batch.now_s())
        rows = [{name: fields.value(job, name) for name in names} for job in jobs]
    else:
        every = (job_fields.volclava_row(job, is_json=is_json) for job in jobs)
        rows = [{name: row[name] for name in names} for row in every]
    if not is_json:
        has_header = "noheader" not in found.flags
        answer.out = output.table(rows, form, is_ibm=is_ibm, has_header=has_header)
        return
    records = [{name.upper(): value for name, value in row.items()} for row in rows]
    records += [{"JOBID": text, "ERROR": f"Job <{text}> is not found"} for text in unknown]
    answer.out = output.as_json("bjobs", "JOBS", records, is_ibm=is_ibm)
    if unknown or not jobs:
        answer.status = 255


def _rows(found: Arguments, jobs: list[Job]) -> str:
    is_wide = bool(found.flags & {"w", "W"})
    lines = [_HEADER + (_WIDER if "W" in found.flags else "")]
    for job in jobs:
        cells = [
            f"{job.id!s:<7} {job.user[:7] if not is_wide else job.user:<7} {job.state:<5}",
            f"{job.queue[:10] if not is_wide else job.queue:<10} {MASTER:<11}",
        ]
        if is_wide:
            where = ":".join(job.hosts) if job.hosts else "   -   "
            when = moments.short(job.submit_s)
            if "W" in found.flags:
                when = moments.numeric(job.submit_s)
            lines.append(" ".join([*cells, f"{where:<11} {job.name:<10} {when}"]))
            if "W" in found.flags:
                lines[-1] += " " + _usage(job)
        else:
            where = job.hosts[0] if job.hosts else ("   -" if job.is_finished else "")
            when = moments.short(job.submit_s)
            lines.append(" ".join([*cells, f"{where:<11} {_shortened(job.name, 10):<10} {when}"]))
            lines += [f"{'':<45}{name}" for name in job.hosts[1:]]
        if "s" in found.flags and job.state in ("USUSP", "SSUSP"):
            lines.append(f" {long_jobs.suspension(job)};")
    return "\n".join(lines) + "\n"


def _usage(job: Job) -> str:
    row = job_fields.volclava_row(job, is_json=False)
    pids = " - " if row["pids"] == "-" else f"{row['pids']} "
    start = " - " if row["start_time"] == "-" else row["start_time"]
    return (
        f"{row['proj_name']:<10} {row['cpu_used']:<12} {row['mem']:<6} {row['swap']:<7}"
        f"{pids}{start} {row['finish_time']} "
    )


def _pending_row(job: Job) -> str:
    line = (
        f"{job.id:<7} {job.user:<7} {job.state:<5} {job.queue:<11} {MASTER:<14} "
        f"{_shortened(job.name, 18):<18} {moments.short(job.submit_s)}\n"
    )
    return line + "".join(f" {text};\n" for text in long_jobs.reasons(job, has_hosts=False))


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else "*" + text[len(text) - width + 1 :]


def _arrays(jobs: list[Job]) -> str:
    lines = ["JOBID    ARRAY_SPEC  OWNER   NJOBS PEND DONE  RUN EXIT SSUSP USUSP PSUSP"]
    for number in dict.fromkeys(job.id for job in jobs if job.index):
        these = [job for job in jobs if job.id == number]
        n = {
            state: sum(job.state == state for job in these)
            for state in (*("PEND", "DONE", "RUN", "EXIT", "SSUSP", "USUSP", "PSUSP"),)
        }
        first = these[0]
        lines.append(
            f"{number:<8} {first.array_spec:<11} {first.user:<8} {len(these):>4} {n['PEND']:>4} "
            f"{n['DONE']:>4} {n['RUN']:>4} {n['EXIT']:>4} {n['SSUSP']:>5} {n['USUSP']:>5} "
            f"{n['PSUSP']:>5}"
        )
    return "\n".join(lines) + "\n"
