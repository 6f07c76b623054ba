"""The fields of bjobs -o, in both dialects."""

from __future__ import annotations

from collections.abc import Callable

from lsf_adapters.testcluster import moments
from lsf_adapters.testcluster.config import MASTER, LsfConfig
from lsf_adapters.testcluster.output import Row
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


def volclava_row(job: Job, *, is_json: bool) -> Row:
    """Return all fields of a job as volclava prints them."""
    nowhere = _NEVER if job.is_finished else ""
    if not job.hosts and not is_json and not job.is_finished:
        nowhere = "-"
    started = job.start_s is not None and bool(job.hosts)
    return {
        "jobid": str(job.id),
        "user": job.user,
        "stat": job.state,
        "queue": job.queue,
        "from_host": MASTER,
        "exec_host": job.hosts[0] if job.hosts else nowhere,
        "job_name": job.name,
        "submit_time": moments.short(job.submit_s),
        "proj_name": job.project,
        "cpu_used": "000:00:00.01" if job.is_finished and started else "000:00:00.00",
        "mem": "4636" if started else "0",
        "swap": "9924" if started else "0",
        "pids": str(job.pid) if started and job.pid else "-",
        "start_time": moments.numeric(job.start_s) if started and job.start_s else "-",
        "finish_time": moments.numeric(job.end_s) if job.end_s else "-",
    }


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
            "first_host": lambda job: job.hosts[0] if job.hosts else "",
            "nexec_host": lambda job: str(len(set(job.hosts))) if job.hosts else "",
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
            "runtimelimit": lambda job: moments.minutes(job.limit_s) if job.limit_s else "",
            "cpu_used": lambda job: "0.0 second(s)" if job.hosts else "",
            "pendstate": self._pendstate,
            "pend_reason": lambda job: " ".join(f"{one[0]};" for one in job.pending_reasons),
            "pend_time": self._pend_time,
            "nreq_slot": lambda job: str(job.max_slots),
            "min_req_proc": lambda job: str(job.min_slots),
            "max_req_proc": lambda job: str(job.max_slots),
            "alloc_slot": self.exec_host,
            "nalloc_slot": lambda job: str(len(job.hosts)) if job.hosts else "",
            "slots": lambda job: str(len(job.hosts) or job.max_slots),
            "rsv_slot": lambda job: _joined(job.reserved, is_short=False),
            "exclusive": lambda job: "Y" if job.is_exclusive else "N",
            "combined_resreq": _requirement,
            "effective_resreq": lambda job: _requirement(job) if job.hosts else "",
            "gpu_num": lambda job: str(job.gpus) if job.gpus else "",
            "gpu_alloc": self._gpus,
            "dependency": lambda job: job.dependency,
            "exit_code": lambda job: str(job.exit_code) if job.state == "EXIT" else "",
            "exit_reason": self._exit_reason,
            "kill_reason": lambda _: "",
            "command": lambda job: job.command,
            "sub_cwd": lambda job: job.cwd,
            "output_file": lambda job: job.output,
            "error_file": lambda job: job.error,
            "input_file": lambda job: job.input,
            "pids": lambda job: str(job.pid) if job.pid else "",
            "mem": lambda job: "4 Mbytes" if job.hosts else "",
            "swap": lambda job: "9 Mbytes" if job.hosts else "",
        }

    def value(self, job: Job, name: str) -> str:
        """Return one field; empty: the job has no such thing."""
        maker = self._makers.get(name)
        return maker(job) if maker else ""

    def exec_host(self, job: Job) -> str:
        """Return the hosts, one per slot, or shortened with LSB_SHORT_HOSTLIST."""
        return _joined(job.hosts, is_short=self._config.parameters.short_hostlist)

    def _moment(self, moment_s: float | None) -> str:
        return "" if moment_s is None else moments.short(moment_s, has_year=self._has_year)

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

    def _run_time(self, job: Job) -> str:
        if job.start_s is None:
            return "0 second(s)"
        return f"{int((job.end_s or self._now_s) - job.start_s)} second(s)"

    def _pend_time(self, job: Job) -> str:
        return str(int((job.start_s or self._now_s) - job.submit_s))

    def _pendstate(self, job: Job) -> str:
        if job.state != "PEND":
            return ""
        is_waiting_for_job = job.dependency or (job.begin_s or 0) > self._now_s
        return "IPEND" if is_waiting_for_job and not job.reserved else "EPEND"

    def _gpus(self, job: Job) -> str:
        devices = ",".join(map(str, range(job.gpus)))
        return " ".join(f"{name}:{devices}" for name in dict.fromkeys(job.hosts)) if devices else ""

    def _exit_reason(self, job: Job) -> str:
        return f"{job.exit_reason}: job killed" if job.exit_reason else ""


def _joined(hosts: list[str], *, is_short: bool) -> str:
    if not is_short:
        return ":".join(hosts)
    counts = {name: hosts.count(name) for name in dict.fromkeys(hosts)}
    return ":".join(f"{n}*{name}" if n > 1 else name for name, n in counts.items())


def _requirement(job: Job) -> str:
    kind = "any" if job.ask_hosts else "local"
    return f"select[type == {kind}] order[r15s:pg] {job.res_req}".strip()
