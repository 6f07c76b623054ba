"""bqueues and busers: the settings of queues, and the slots of users."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lsf_adapters.testcluster import arguments, moments, output
from lsf_adapters.testcluster.batch import Batch
from lsf_adapters.testcluster.config import Queue
from lsf_adapters.testcluster.request import Answer, Request
from lsf_adapters.testcluster.state import Job
from lsf_adapters.testcluster.texts import THRESHOLDS

_USAGE = "Usage: bqueues [options] [queue_name ...]\n"
_HEADER = "PRIO {kind}STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN  "
_FIELDS = {
    "queue_name": 15,
    "description": 50,
    "priority": 10,
    "nice": 6,
    "status": 12,
    "max": 10,
    "jl_u": 10,
    "jl_p": 10,
    "jl_h": 10,
    "njobs": 10,
    "pend": 10,
    "run": 10,
    "susp": 10,
    "rsv": 10,
    "ususp": 10,
    "ssusp": 10,
    "prio": 10,
    "pjobs": 10,
    "slots": 10,
}


@dataclass(slots=True, kw_only=True)
class Counts:
    """Slots of a queue's or user's jobs, by state."""

    pend: int = 0
    run: int = 0
    ssusp: int = 0
    ususp: int = 0
    rsv: int = 0

    def add(self, job: Job) -> None:
        """Count one job."""
        if job.is_pending:
            self.pend += job.max_slots - len(job.reserved)
            self.rsv += len(job.reserved)
        elif job.state == "SSUSP":
            self.ssusp += len(job.hosts)
        elif job.state == "USUSP":
            self.ususp += len(job.hosts)
        elif job.holds_slots:
            self.run += len(job.hosts)

    @property
    def n_jobs(self) -> int:
        """All of them."""
        return self.pend + self.run + self.ssusp + self.ususp + self.rsv


def bqueues(batch: Batch, request: Request) -> Answer:
    """Answer bqueues."""
    flags, valued = set("wlrhV"), set("mu")
    if batch.config.is_ibm:
        flags |= {"json", "noheader"}
        valued |= {"o"}
    options = arguments.read(request.argv, flags=flags, valued=valued, usage=_USAGE)
    wrong = [name for name in options.words if name not in batch.queue_of]
    if wrong:
        return Answer(status=255, err="".join(f"{name}: No such queue\n" for name in wrong))
    queues = list(batch.queue_of.values())
    if options.words:
        queues = [queue for queue in queues if queue.name in options.words]
    counts = {queue.name: Counts() for queue in queues}
    for job in batch.live.values():
        if job.queue in counts:
            counts[job.queue].add(job)
    if "o" in options.values:
        rows = [_row(batch, queue, counts[queue.name]) for queue in queues]
        return Answer(out=_formatted(rows, options))
    if options.flags & {"l", "r"}:
        rule = "-" * 79
        texts = [_long(batch, queue, counts[queue.name]) for queue in queues]
        return Answer(out=f"{rule}\n".join(texts))
    gap, width = "   ", 14
    if "w" in options.flags:
        gap, width = "  ", 15
    lines = [f"{'QUEUE_NAME':<15} {_HEADER.format(kind='')}SUSP "]
    for queue in queues:
        n = counts[queue.name]
        cells = _cells((n.n_jobs, n.pend, n.run, n.ssusp + n.ususp), width=6)
        state = _state(batch, queue)
        slots_per_user = queue.max_slots_per_user or "-"
        lines.append(
            f"{queue.name:<15} {queue.priority:>3}{gap}{state:<{width}}   -"
            f" {slots_per_user:>4}    -    -{cells}"
        )
    return Answer(out="\n".join(lines) + "\n")


def _formatted(rows: Sequence[output.Row], options: arguments.Arguments) -> str:
    form = output.read_format(options.values["o"], _FIELDS, is_ibm=True)
    if "json" in options.flags:
        records = output.records(rows, form)
        return output.as_json("bqueues", "QUEUES", records, is_ibm=True)
    has_header = "noheader" not in options.flags
    return output.table(rows, form, is_ibm=True, has_header=has_header)


def _cells(numbers: Iterable[int], *, width: int) -> str:
    return "".join(f"{number:>{width}}" for number in numbers)


def _state(batch: Batch, queue: Queue) -> str:
    state = batch.queues[queue.name]
    admission = "Open" if state.is_open else "Closed"
    dispatch = "Active" if state.is_active else "Inact"
    return f"{admission}:{dispatch}"


def _row(batch: Batch, queue: Queue, n: Counts) -> dict[str, str]:
    return {
        "queue_name": queue.name,
        "description": queue.description,
        "priority": str(queue.priority),
        "prio": str(queue.priority),
        "nice": "0",
        "status": _state(batch, queue),
        "max": "-",
        "jl_u": str(queue.max_slots_per_user or "-"),
        "jl_p": "-",
        "jl_h": "-",
        "njobs": str(n.n_jobs),
        "slots": str(n.n_jobs),
        "pend": str(n.pend),
        "pjobs": str(n.pend),
        "run": str(n.run),
        "susp": str(n.ssusp + n.ususp),
        "rsv": str(n.rsv),
        "ususp": str(n.ususp),
        "ssusp": str(n.ssusp),
    }


def _long(batch: Batch, queue: Queue, n: Counts) -> str:
    default = ""
    if queue.is_default:
        default = "  This is the default queue."
    cells = _cells((n.n_jobs, n.pend, n.run, n.ssusp, n.ususp), width=6)
    slots_per_user = queue.max_slots_per_user or "-"
    head = f"{queue.priority:>3}    0  {_state(batch, queue):<15}   - {slots_per_user:>4}    -    -"
    delay_s = 10 if batch.config.profile.new_job_sched_delay_s is None else 0
    lines = [
        f"\nQUEUE: {queue.name}",
        f"  -- {queue.description}{default}",
        "",
        "PARAMETERS/STATISTICS",
        f"{_HEADER.format(kind='NICE ')}SSUSP USUSP  RSV ",
        f"{head}{cells}{n.rsv:>5}",
        f"Schedule delay for a new job is {delay_s} seconds",
        "Interval for a host to accept two jobs is 0 seconds",
        "",
    ]
    for title, limit_s in (
        ("DEFAULT LIMITS:", queue.default_limit_s),
        ("MAXIMUM LIMITS:", queue.max_limit_s),
    ):
        if limit_s is not None:
            limit = f"{moments.minutes(limit_s)} min"
            lines += [title, f" {'RUNLIMIT':<24}", f" {limit:<24}", ""]
    text = "\n".join(lines) + "\n" + f"SCHEDULING PARAMETERS\n{THRESHOLDS}\n"
    if policies := "  ".join(_policies(queue)):
        text += f"SCHEDULING POLICIES:  {policies}\n\n"
    text += f"USERS: {_names(queue.users)}\nHOSTS: {_names(queue.hosts)}\n"
    if queue.reserve_passes:
        span_s = round(queue.reserve_passes * batch.config.profile.mbd_sleep_s)
        text += f"Maximum slot reservation time: {span_s} seconds\n"
    if queue.is_preemptive or queue.is_preemptable:
        text += f"PREEMPTION:  {queue.preemption}\n"
    if queue.terminates_preempted:
        text += "TERMINATE_WHEN:  PREEMPT\n"
    if queue.terminate_signal:
        text += f"JOB_CONTROLS:\n    TERMINATE:       [{queue.terminate_signal}]\n"
    if queue.is_rerunnable:
        text += "RERUNNABLE:  yes\n"
    return text + "\n"


def _names(names: Sequence[str]) -> str:
    if not names:
        return " all"
    return " ".join(names) + " "


def _policies(queue: Queue) -> list[str]:
    policies = (
        (queue.backfills, "BACKFILL"),
        (queue.allows_exclusive, "EXCLUSIVE"),
        (queue.is_preemptive, "PREEMPTIVE"),
        (queue.is_preemptable, "PREEMPTABLE"),
    )
    return [name for is_so, name in policies if is_so]


def busers(batch: Batch, request: Request) -> Answer:
    """Answer busers."""
    options = arguments.read(request.argv, flags={*"whV"}, valued=())
    counts: dict[str, Counts] = {}
    for job in batch.live.values():
        counts.setdefault(job.user, Counts()).add(job)
    names = options.words or [request.user]
    if "all" in names:
        names = [*sorted(counts), "default"]
    lines = ["USER/GROUP          JL/P    MAX  NJOBS   PEND    RUN  SSUSP  USUSP    RSV "]
    for name in names:
        head = f"{name:<15} {'-':>8} {'-':>6}"
        if name == "default":
            lines.append(head + f"{'-':>7}" * 6 + " ")
            continue
        n = counts.get(name, Counts())
        lines.append(head + _cells((n.n_jobs, n.pend, n.run, n.ssusp, n.ususp, n.rsv), width=7))
    return Answer(out="\n".join(lines) + "\n")
