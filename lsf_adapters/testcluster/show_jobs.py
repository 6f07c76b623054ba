"""bjobs: the selected jobs, in one of its forms."""

from __future__ import annotations

from collections import Counter

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
    flags = _IBM_FLAGS if is_ibm else _FLAGS
    options = arguments.read(request.argv, flags=flags, valued=_VALUED, usage=_USAGE)
    if "json" in options.flags and "o" not in options.values:
        return Answer(status=255, err=_USAGE)
    if "o" in options.values:
        _format(options, is_ibm=is_ibm)  # a wrong field is refused, whether or not there are jobs
    queue = options.values.get("q")
    if queue is not None and queue not in batch.queue_of:
        return Answer(status=255, err=f"{queue}: No such queue\n")
    specs = [arguments.job_spec(word) for word in options.words if word != "0"]
    jobs: list[Job] = []
    unknown: list[str] = []
    for spec in specs:
        jobs_of_spec = selection.of_spec(batch, spec)
        jobs += jobs_of_spec
        if not jobs_of_spec:
            unknown.append(spec.text)
    if not specs:
        jobs = _matching(batch, options, request.user)
    jobs = selection.in_order(batch, jobs)
    answer = Answer()
    if "json" not in options.flags:
        for text in unknown:
            answer.err += f"Job <{text}> is not found\n"
            answer.status = 255
    if jobs or "json" in options.flags:
        _show(batch, options, jobs, unknown, answer)
    elif not specs:
        answer.err, answer.status = _nothing(options), 254
    return answer


def _matching(batch: Batch, options: Arguments, user: str) -> list[Job]:
    """Return the jobs that pass the filters, where no ids are named."""
    candidates = batch.live.values()
    if options.flags & {"a", "d"}:
        candidates = batch.jobs.values()
    return [
        job
        for job in candidates
        if selection.matches(job, options, user) and selection.has_state(job, options)
    ]


def _nothing(options: Arguments) -> str:
    if "J" in options.values:
        return f"Job <{options.values['J']}> is not found\n"
    kinds = {"a": "", "d": " DONE/EXIT", "p": " pending", "r": " running", "s": " suspended"}
    kind = next((text for letter, text in kinds.items() if letter in options.flags), " unfinished")
    sentence = f"No{kind} job found"
    if "q" in options.values:
        sentence += f" in queue <{options.values['q']}>"
    return f"{sentence}\n"


def _show(
    batch: Batch, options: Arguments, jobs: list[Job], unknown: list[str], answer: Answer
) -> None:
    if "o" in options.values:
        _show_fields(batch, options, jobs, unknown, answer)
    elif options.flags & {"l", "UF"}:
        answer.out = long_jobs.listing(
            batch.config,
            jobs,
            is_unformatted="UF" in options.flags,
            has_hosts="p" in options.flags,
        )
    elif "A" in options.flags:
        answer.out = _arrays(jobs)
    elif "p" in options.flags:
        answer.out = _PENDING_HEADER + "".join(map(_pending_row, jobs))
    else:
        answer.out = _rows(options, jobs)


def _format(options: Arguments, *, is_ibm: bool) -> output.Format:
    widths = job_fields.IBM if is_ibm else job_fields.VOLCLAVA
    return output.read_format(options.values["o"], widths, is_ibm=is_ibm)


def _show_fields(
    batch: Batch, options: Arguments, jobs: list[Job], unknown: list[str], answer: Answer
) -> None:
    is_ibm, is_json = batch.config.is_ibm, "json" in options.flags
    form = _format(options, is_ibm=is_ibm)
    if is_ibm:
        fields = job_fields.IbmFields(batch.config, batch.now_s())
        rows = [fields.row(job, form) for job in jobs]
    else:
        rows = [job_fields.volclava_row(job, is_json=is_json) for job in jobs]
    if not is_json:
        has_header = "noheader" not in options.flags
        answer.out = output.table(rows, form, is_ibm=is_ibm, has_header=has_header)
        return
    records = output.records(rows, form)
    records += [{"JOBID": text, "ERROR": f"Job <{text}> is not found"} for text in unknown]
    answer.out = output.as_json("bjobs", "JOBS", records, is_ibm=is_ibm)
    if unknown or not jobs:
        answer.status = 255


def _rows(options: Arguments, jobs: list[Job]) -> str:
    lines = [_HEADER]
    if "W" in options.flags:
        lines = [_HEADER + _WIDER]
    for job in jobs:
        if "W" in options.flags:
            lines.append(f"{_wide_row(job, moments.numeric(job.submit_s))} {_usage(job)}")
        elif "w" in options.flags:
            lines.append(_wide_row(job, moments.short(job.submit_s)))
        else:
            lines.append(_narrow_row(job))
            lines += [f"{'':<45}{name}" for name in job.hosts[1:]]
        if "s" in options.flags and job.state in ("USUSP", "SSUSP"):
            lines.append(f" {long_jobs.suspension(job)};")
    return "\n".join(lines) + "\n"


def _wide_row(job: Job, date: str) -> str:
    hosts = ":".join(job.hosts) or "   -   "
    return (
        f"{job.id!s:<7} {job.user:<7} {job.state:<5} {job.queue:<10} {MASTER:<11} "
        f"{hosts:<11} {job.name:<10} {date}"
    )


def _narrow_row(job: Job) -> str:
    host = ""
    if job.hosts:
        host = job.hosts[0]
    elif job.is_finished:
        host = "   -"
    return (
        f"{job.id!s:<7} {job.user[:7]:<7} {job.state:<5} {job.queue[:10]:<10} {MASTER:<11} "
        f"{host:<11} {_shortened(job.name, 10):<10} {moments.short(job.submit_s)}"
    )


def _usage(job: Job) -> str:
    row = job_fields.volclava_row(job, is_json=False)
    pids, start = f"{row['pids']} ", row["start_time"]
    if row["pids"] == "-":
        pids = " - "
    if start == "-":
        start = " - "
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
    if len(text) <= width:
        return text
    return "*" + text[len(text) - width + 1 :]


def _arrays(jobs: list[Job]) -> str:
    lines = ["JOBID    ARRAY_SPEC  OWNER   NJOBS PEND DONE  RUN EXIT SSUSP USUSP PSUSP"]
    elements_of: dict[int, list[Job]] = {}
    for job in jobs:
        if job.index:
            elements_of.setdefault(job.id, []).append(job)
    for number, elements in elements_of.items():
        n = Counter(job.state for job in elements)
        first = elements[0]
        lines.append(
            f"{number:<8} {first.array_spec:<11} {first.user:<8} {len(elements):>4} {n['PEND']:>4} "
            f"{n['DONE']:>4} {n['RUN']:>4} {n['EXIT']:>4} {n['SSUSP']:>5} {n['USUSP']:>5} "
            f"{n['PSUSP']:>5}"
        )
    return "\n".join(lines) + "\n"
