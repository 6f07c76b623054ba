"""The fields of bjobs -o, in both dialects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from lsf_adapters.testcluster import moments
from lsf_adapters.testcluster.config import MASTER, LsfConfig
from lsf_adapters.testcluster.output import Format, Row
from lsf_adapters.testcluster.state import Job

VOLCLAVA = dict.fromkeys(
    (
        *("jobid", "user", "stat", "queue", "from_host", "exec_host", "job_name", "submit_time"),
        *("proj_name", "cpu_used", "mem", "swap", "pids", "start_time", "finish_time"),
    ),
    0,
)
"""Fields of volclava; it has no widths."""

IBM = {
    "jobid": 7,
    "jobindex": 8,
    "stat": 5,
    "user": 7,
    "user_group": 15,
    "queue": 10,
    "job_name": 10,
    "job_description": 17,
    "proj_name": 11,
    "application": 13,
    "from_host": 11,
    "exec_host": 11,
    "first_host": 11,
    "nexec_host": 10,
    "ask_hosts": 30,
    "submit_time": 15,
    "start_time": 15,
    "estimated_start_time": 20,
    "finish_time": 16,
    "specified_start_time": 20,
    "specified_terminate_time": 24,
    "time_left": 11,
    "run_time": 15,
    "runtimelimit": 12,
    "estimated_run_time": 20,
    "cpu_used": 10,
    "pendstate": 9,
    "pend_reason": 11,
    "pend_time": 12,
    "nreq_slot": 10,
    "min_req_proc": 12,
    "max_req_proc": 12,
    "alloc_slot": 20,
    "nalloc_slot": 11,
    "exclusive": 13,
    "combined_resreq": 20,
    "effective_resreq": 17,
    "gpu_num": 10,
    "gpu_alloc": 15,
    "dependency": 15,
    "rsvid": 40,
    "job_priority": 12,
    "exit_code": 10,
    "exit_reason": 50,
    "kill_reason": 50,
    "command": 15,
    "sub_cwd": 10,
    "output_file": 13,
    "error_file": 10,
    "input_file": 10,
    "pids": 20,
    "mem": 15,
    "swap": 15,
    "slots": 5,
    "esstart_time": 20,
    "name": 10,
    "id": 7,
    "project": 11,
    "rsv_slot": 20,
    "interactive": 11,
}
"""Fields of LSF 10.1 that the stand-in knows, with their widths (bjobs.o.1)."""

_NEVER = "   -   "
# Fields of LSF 10.1 that are empty until a job has hosts.
_OF_STARTED = frozenset(
    {"first_host", "nexec_host", "cpu_used", "nalloc_slot", "effective_resreq", "mem", "swap"}
)


def volclava_row(job: Job, *, is_json: bool) -> Row:
    """Return all fields of a job as volclava prints them."""
    row = {
        "jobid": str(job.id),
        "user": job.user,
        "stat": job.state,
        "queue": job.queue,
        "from_host": MASTER,
        "exec_host": "",
        "job_name": job.name,
        "submit_time": moments.short(job.submit_s),
        "proj_name": job.project,
        "cpu_used": "000:00:00.00",
        "mem": "0",
        "swap": "0",
        "pids": "-",
        "start_time": "-",
        "finish_time": "-",
    }
    if job.hosts:
        row["exec_host"] = job.hosts[0]
    elif job.is_finished:
        row["exec_host"] = _NEVER
    elif not is_json:
        row["exec_host"] = "-"
    if job.start_s is not None and job.hosts:
        row["mem"], row["swap"] = "4636", "9924"
        if job.is_finished:
            row["cpu_used"] = "000:00:00.01"
        if job.pid:
            row["pids"] = str(job.pid)
        if job.start_s:
            row["start_time"] = moments.numeric(job.start_s)
    if job.end_s:
        row["finish_time"] = moments.numeric(job.end_s)
    return row


class IbmFields:
    """Computes only the fields that were asked for: a listing may have thousands of jobs."""

    def __init__(self, config: LsfConfig, now_s: float) -> None:
        self._config = config
        self._now_s = now_s
        self._has_year = config.parameters.display_year
        self._makers: dict[str, Callable[[Job], str]] = {
            "jobid": lambda job: str(job.id),
            "id": lambda job: str(job.id),
            "jobindex": lambda job: str(job.index),
            "stat": lambda job: job.state,
            "user": lambda job: job.user,
            "queue": lambda job: job.queue,
            "job_name": lambda job: job.name,
            "name": lambda job: job.name,
            "proj_name": lambda job: job.project,
            "project": lambda job: job.project,
            "from_host": lambda _: MASTER,
            "exec_host": self.exec_host,
            "first_host": lambda job: job.hosts[0],
            "nexec_host": lambda job: str(len(set(job.hosts))),
            "ask_hosts": lambda job: " ".join(job.ask_hosts),
            "submit_time": lambda job: self._moment(job.submit_s),
            "start_time": lambda job: self._moment(job.start_s),
            "estimated_start_time": lambda job: self._moment(job.estimate_s),
            "esstart_time": lambda job: self._moment(job.estimate_s),
            "finish_time": self._finish,
            "specified_start_time": lambda job: self._moment(job.begin_s),
            "specified_terminate_time": lambda job: self._moment(job.term_s),
            "time_left": self._time_left,
            "run_time": self._run_time,
            "runtimelimit": self._run_limit,
            "cpu_used": lambda _: "0.0 second(s)",
            "pendstate": self._pendstate,
            "pend_reason": lambda job: " ".join(f"{text};" for text, *_ in job.pending_reasons),
            "pend_time": self._pend_time,
            "nreq_slot": lambda job: str(job.max_slots),
            "min_req_proc": lambda job: str(job.min_slots),
            "max_req_proc": lambda job: str(job.max_slots),
            "alloc_slot": self.exec_host,
            "nalloc_slot": lambda job: str(len(job.hosts)),
            "slots": lambda job: str(len(job.hosts) or job.max_slots),
            "rsv_slot": lambda job: _joined(job.reserved, is_short=False),
            "exclusive": lambda job: "Y" if job.is_exclusive else "N",
            "combined_resreq": _requirement,
            "effective_resreq": _requirement,
            "gpu_num": lambda job: str(job.gpus or ""),
            "gpu_alloc": self._gpus,
            "dependency": lambda job: job.dependency,
            "exit_code": self._exit_code,
            "exit_reason": self._exit_reason,
            "kill_reason": lambda _: "",
            "command": lambda job: job.command,
            "sub_cwd": lambda job: job.cwd,
            "output_file": lambda job: job.output,
            "error_file": lambda job: job.error,
            "input_file": lambda job: job.input,
            "pids": lambda job: str(job.pid or ""),
            "mem": lambda _: "4 Mbytes",
            "swap": lambda _: "9 Mbytes",
        }

    def row(self, job: Job, form: Format) -> Row:
        """Return the fields of a format."""
        return {column.name: self.value(job, column.name) for column in form.columns}

    def value(self, job: Job, name: str) -> str:
        """Return one field; empty: the job has no such thing."""
        maker = self._makers.get(name)
        if maker is None or (name in _OF_STARTED and not job.hosts):
            return ""
        return maker(job)

    def exec_host(self, job: Job) -> str:
        """Return the hosts, one per slot, or shortened with LSB_SHORT_HOSTLIST."""
        return _joined(job.hosts, is_short=self._config.parameters.short_hostlist)

    def _moment(self, moment_s: float | None) -> str:
        if moment_s is None:
            return ""
        return moments.short(moment_s, has_year=self._has_year)

    def _finish(self, job: Job) -> str:
        if job.end_s is not None:
            return self._moment(job.end_s)
        if job.start_s is None or job.limit_s is None:
            return ""
        return self._moment(job.start_s + job.limit_s) + " L"

    def _time_left(self, job: Job) -> str:
        if job.is_finished or job.start_s is None or job.limit_s is None:
            return ""
        return moments.left(job.start_s + job.limit_s - self._now_s)

    def _run_limit(self, job: Job) -> str:
        if not job.limit_s:
            return ""
        return moments.minutes(job.limit_s)

    def _run_time(self, job: Job) -> str:
        if job.start_s is None:
            return "0 second(s)"
        return f"{int((job.end_s or self._now_s) - job.start_s)} second(s)"

    def _pend_time(self, job: Job) -> str:
        return str(int((job.start_s or self._now_s) - job.submit_s))

    def _pendstate(self, job: Job) -> str:
        if job.state != "PEND":
            return ""
        waits_for_condition = job.dependency or (job.begin_s or 0) > self._now_s
        return "IPEND" if waits_for_condition and not job.reserved else "EPEND"

    def _gpus(self, job: Job) -> str:
        if not job.gpus:
            return ""
        devices = ",".join(map(str, range(job.gpus)))
        return " ".join(f"{name}:{devices}" for name in dict.fromkeys(job.hosts))

    def _exit_code(self, job: Job) -> str:
        if job.state != "EXIT":
            return ""
        return str(job.exit_code)

    def _exit_reason(self, job: Job) -> str:
        if not job.exit_reason:
            return ""
        return f"{job.exit_reason}: job killed"


def _joined(hosts: list[str], *, is_short: bool) -> str:
    if not is_short:
        return ":".join(hosts)
    words = []
    for name, n_slots in Counter(hosts).items():
        words.append(name)
        if n_slots > 1:
            words[-1] = f"{n_slots}*{name}"
    return ":".join(words)


def _requirement(job: Job) -> str:
    kind = "any" if job.ask_hosts else "local"
    return f"select[type == {kind}] order[r15s:pg] {job.res_req}".strip()
