"""bkill, bstop, bresume, brequeue and bmod: the commands that change submitted jobs."""

from __future__ import annotations

import signal
from collections.abc import Callable

from lsf_adapters.testcluster import arguments, selection
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.options import RefusedError, parse
from lsf_adapters.testcluster.request import Answer, Request
from lsf_adapters.testcluster.state import Job

_SIGNALS = (
    "HUP INT QUIT ILL TRAP IOT EMT FPE KILL BUS SEGV SYS PIPE ALRM TERM STOP TSTP CONT CHLD TTIN "
    "TTOU IO XCPU XFSZ VTALRM PROF WINCH LOST USR1 USR2 "
)
_FILTERS = {*"uqJm", "app", "g", "sla"}
_NO_IDS = "Job ID or one of '-m', '-u' '-q' and '-J' must be specified.\n"
_USAGE = 'Usage: {verb} [options] [jobId | "jobId[index_list]"]...\n'

Change = Callable[[Batch, Job, Request], str]
"""Acts on one job; returns the sentence's end, or raises ``UnableError``."""


class UnableError(Exception):
    """Raised where a command cannot act on a job; its text is the command's."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def bkill(batch: Batch, request: Request) -> Answer:
    """Answer bkill."""
    flags = {*"lrhVbd"}
    selected = arguments.read(
        request.argv, flags=flags, valued=_FILTERS | {"s", "C"}, usage=_USAGE.format(verb="bkill")
    )
    if "l" in selected.flags:
        return Answer(status=255, out=_SIGNALS + "\n")
    name = selected.values.get("s", "")
    change: Change = _kill
    if "r" in selected.flags:
        change = _remove
    elif name:
        number = _signal(name)
        if number is None:
            return Answer(status=255, err=f"{name}: Illegal signal value\n")
        change = _signals_with(number)
    return _apply(batch, request, selected, change)


def bstop(batch: Batch, request: Request) -> Answer:
    """Answer bstop."""
    return _apply(batch, request, _plain(request), _stop)


def bresume(batch: Batch, request: Request) -> Answer:
    """Answer bresume."""
    return _apply(batch, request, _plain(request), _resume)


def brequeue(batch: Batch, request: Request) -> Answer:
    """Answer brequeue."""
    return _apply(batch, request, _plain(request), _requeue)


def bmod(batch: Batch, request: Request) -> Answer:
    """Answer bmod: the run limit and the termination time of one job."""
    *options, word = request.argv[1:] or [""]
    spec = arguments.job_spec(word)
    jobs = selection.of_spec(batch, spec)
    if not jobs:
        return Answer(status=255, err=f"Job <{word}>: No matching job found\n")
    try:
        # With some command the options are those of a bsub.
        changes = parse([*options, "true"], "", is_ibm=batch.config.is_ibm, now_s=batch.now_s())
    except RefusedError as refusal:
        return Answer(status=255, err=f"{refusal.text}. Job not modified.\n")
    for job in jobs:
        if not _may_act(batch, job, request):
            return Answer(status=255, err=f"Job <{word}>: User permission denied\n")
        if changes.has("W"):
            job.limit_s = changes.limit_s
        if changes.has("t"):
            job.term_s = changes.term_s
        if changes.has("J"):
            job.name, job.is_named = changes.name, True
        batch.touch(job)
    return Answer(out=f"Parameters of job <{word}> are being changed\n")


def _plain(request: Request) -> arguments.Arguments:
    usage = _USAGE.format(verb=request.verb)
    return arguments.read(request.argv, flags={*"ahVrpde"}, valued=_FILTERS, usage=usage)


def _signal(name: str) -> signal.Signals | None:
    try:
        if name.isdigit():
            return signal.Signals(int(name))
        return signal.Signals["SIG" + name.removeprefix("SIG")]
    except (KeyError, ValueError):
        return None


def _apply(batch: Batch, request: Request, selected: arguments.Arguments, change: Change) -> Answer:
    has_filter = bool(selected.values.keys() & {"u", "q", "J", "m"})
    if not selected.words and not has_filter:
        return Answer(status=255, err=_NO_IDS + _USAGE.format(verb=request.verb))
    answer = Answer()
    ids = [word for word in selected.words if word != "0"]
    if not ids:
        _apply_to_all(batch, request, selected, change, answer)
        return answer
    for word in ids:
        spec = arguments.job_spec(word)
        jobs = selection.of_spec(batch, spec)
        if not jobs:
            answer.err += f"Job <{word}>: No matching job found\n"
            answer.status = 255
        for job in jobs:
            name = job.key
            if len(jobs) == 1 and "[" in word:
                name = word
            if len(jobs) > 1 and job.is_finished:
                continue
            _act(batch, request, job, change, answer, name)
    return answer


def _apply_to_all(
    batch: Batch, request: Request, selected: arguments.Arguments, change: Change, answer: Answer
) -> None:
    jobs = _selected(batch, request, selected)
    if not jobs:
        answer.err = "No unfinished job found\n"
        if "q" in selected.values:
            answer.err = f"No unfinished job found in queue <{selected.values['q']}>\n"
        if "J" in selected.values:
            answer.err = f"Job <{selected.values['J']}> is not found\n"
        answer.status = 255
    for job in jobs:
        _act(batch, request, job, change, answer, job.key)


def _selected(batch: Batch, request: Request, selected: arguments.Arguments) -> list[Job]:
    jobs = [
        job
        for job in selection.in_order(batch, batch.live.values())
        if selection.matches(job, selected, request.user)
    ]
    if "J" not in selected.values:
        return jobs
    arrays = {job.id for job in jobs if job.index}
    for job in batch.jobs.values():  # elements that have ended are named, too
        if job.id in arrays and job not in jobs:
            jobs.append(job)
    return sorted(jobs, key=lambda job: (job.id, job.index))


def _act(
    batch: Batch, request: Request, job: Job, change: Change, answer: Answer, name: str
) -> None:
    problem = ""
    if not _may_act(batch, job, request):
        problem = "User permission denied"
    elif job.is_finished:
        problem = "Job has already finished"
    else:
        try:
            answer.out += f"Job <{name}> is being {change(batch, job, request)}\n"
        except UnableError as refusal:
            problem = refusal.text
    if problem:
        answer.err += f"Job <{name}>: {problem}\n"
        answer.status = 255
    batch.touch(job)


def _may_act(batch: Batch, job: Job, request: Request) -> bool:
    administrators = batch.config.parameters.administrators
    return request.uid == job.uid or request.is_from(administrators)


def _note(batch: Batch, job: Job, request: Request, name: str) -> None:
    batch.events.signal(job, name, request.user, request.uid, batch.now_s())


def _check_reachable(batch: Batch, job: Job) -> None:
    if not batch.hosts[job.hosts[0]].is_reachable:
        raise UnableError("Operation is in progress")


def _kill(batch: Batch, job: Job, request: Request) -> str:
    _note(batch, job, request, "KILL")
    if job.is_pending:
        batch.finish(job, 0, "TERM_OWNER", state="EXIT")
        return "terminated"
    if not batch.hosts[job.hosts[0]].is_reachable:
        job.state = "ZOMBI"  # it vanishes from listings, and may still run
    _check_reachable(batch, job)
    job.exit_reason = job.exit_reason or "TERM_OWNER"
    if not job.is_killed or not job.ladder:
        job.is_killed = True
        batch.start_ladder(job)
    return "terminated"


def _remove(batch: Batch, job: Job, request: Request) -> str:
    """Forget the job, whether or not its processes end."""
    _note(batch, job, request, "KILL")
    if not job.is_pending and batch.hosts[job.hosts[0]].is_reachable:
        batch.runner.send(job, signal.SIGKILL)
    code = 0 if job.is_pending else 137
    batch.finish(job, code, "TERM_REMOVE_HUNG_JOB", state="EXIT")
    return "terminated"


def _signals_with(number: signal.Signals) -> Change:
    name = number.name.removeprefix("SIG")

    def change(batch: Batch, job: Job, request: Request) -> str:
        if number == signal.SIGKILL and job.is_pending:
            return _kill(batch, job, request)
        _note(batch, job, request, name)
        if job.is_pending:
            if number in (signal.SIGTERM, signal.SIGINT):
                return _kill(batch, job, request)
            raise UnableError("Job has not started yet")
        _check_reachable(batch, job)
        if not batch.runner.send(job, number):
            job.ladder, job.ladder_s = [name, *job.ladder], 0.0
        elif job.state in ("USUSP", "SSUSP") and number in (signal.SIGTERM, signal.SIGKILL):
            batch.runner.send(job, signal.SIGCONT)
        return "signaled"

    return change


def _stop(batch: Batch, job: Job, request: Request) -> str:
    _note(batch, job, request, "STOP")
    if job.is_pending:
        job.state = "PSUSP"
        job.pending_reasons = [["The job was suspended by the user while pending", "lsfm"]]
    else:
        _check_reachable(batch, job)
        batch.runner.send(job, signal.SIGSTOP if job.is_parallel else signal.SIGTSTP)
        job.state = "USUSP"
    batch.events.status(job, batch.now_s())
    return "stopped"


def _resume(batch: Batch, job: Job, request: Request) -> str:
    _note(batch, job, request, "CONT")
    if job.state == "PSUSP":
        job.state = "PEND"
    elif job.state in ("USUSP", "SSUSP"):
        _check_reachable(batch, job)
        job.state, job.stop_reason = "SSUSP", "resume"  # the next pass lets it go on
    else:
        raise UnableError("Job is not suspended")
    batch.events.status(job, batch.now_s())
    return "resumed"


def _requeue(batch: Batch, job: Job, request: Request) -> str:
    if job.is_pending:
        raise UnableError("Job has not started yet")
    _check_reachable(batch, job)
    _note(batch, job, request, "KILL")
    batch.runner.send(job, signal.SIGKILL)
    batch.requeue(job)
    return "requeued "
