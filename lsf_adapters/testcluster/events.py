"""The journal of mbatchd, lsb.events: one record a line, as recorded and as lsb.events(5) says.

``batch`` writes a record for each change of a job; others read the file to be told. After
``max_job_num`` finished jobs the file becomes lsb.events.1 and a new one is begun.
"""

from __future__ import annotations

import os
from pathlib import Path

from lsf_adapters.testcluster.config import MASTER
from lsf_adapters.testcluster.state import Job

# Bits of the options field, from lsf/lsbatch.h.
_JOB_NAME, _QUEUE, _HOST, _IN_FILE, _OUT_FILE, _ERR_FILE = 0x1, 0x2, 0x4, 0x8, 0x10, 0x20
_EXCLUSIVE, _RERUNNABLE, _HOST_SPEC, _DEPEND = 0x40, 0x4000, 0x10000, 0x20000
_RES_REQ, _PROJECT = 0x40000, 0x2000000
_STATUS = {"DONE": 64, "EXIT": 32, "PEND": 1, "PSUSP": 2, "RUN": 4, "SSUSP": 8, "USUSP": 16}
_POST_DONE = 256


class EventsFile:
    """The file of one cluster."""

    def __init__(self, path: Path, *, is_ibm: bool, cpu_factor: float, max_job_num: int) -> None:
        self._path = path
        self._is_ibm = is_ibm
        self._version, self._header = "22", ""
        if is_ibm:
            self._version, self._header = "10.1", "#80\n"
        self._cpu_factor = cpu_factor
        self._max_job_num = max_job_num

        self._n_finished = 0
        if not path.exists():
            self._begin()

    def _begin(self) -> None:
        self._path.write_text(self._header)
        self._path.chmod(0o644)

    def _write(self, kind: str, *values: object, now_s: float) -> None:
        words = [_quoted(kind), _quoted(self._version), str(int(now_s))]
        words += map(_word, values)
        with self._path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(" ".join(words) + "\n")

    def _switch_if_full(self) -> None:
        """Rename the file as mbatchd does when it holds enough finished jobs."""
        self._n_finished += 1
        if self._n_finished < self._max_job_num:
            return
        self._n_finished = 0
        suffixes = (path.suffix[1:] for path in self._path.parent.glob("lsb.events.*"))
        numbers = map(int, filter(str.isdigit, suffixes))
        for number in sorted(numbers, reverse=True):
            older = self._path.with_name(f"lsb.events.{number}")
            older.replace(self._path.with_name(f"lsb.events.{number + 1}"))
        self._path.replace(self._path.with_name("lsb.events.1"))
        fresh = self._path.with_name("lsb.events.tmp")
        fresh.write_text(self._header)
        fresh.chmod(0o644)
        os.replace(fresh, self._path)  # noqa: PTH105 - there is never no file for long

    def new(self, job: Job, now_s: float) -> None:
        """JOB_NEW: a job was accepted."""
        limits = [-1] * 11
        if job.limit_s is not None:
            limits[9] = int(job.limit_s * self._cpu_factor)
        host_spec = name = ""
        if job.limit_s is not None:
            host_spec = MASTER
        if job.is_named:
            name = job.array_spec or job.name
        values: list[object] = [job.id, job.uid, _options(job), job.min_slots, int(job.submit_s)]
        values += [int(job.begin_s or 0), int(job.term_s or 0), -65535, 0, 0, job.user, *limits]
        values += [host_spec, _Verbatim(f"{self._cpu_factor:.2f}"), job.umask]
        values += [job.queue, job.res_req, MASTER, "", "", job.input, job.output, job.error]
        values += [job.cwd, f"{int(job.submit_s)}.{job.id}", len(job.ask_hosts), *job.ask_hosts]
        values += [job.dependency, "", name]
        values += [job.command, 0, "", job.project, job.max_slots, "linux", job.login_shell]
        if self._is_ibm:
            values += ["", "", ""]  # time event, user group, exceptions
        values += [6160 | job.is_held, 0, "", "", "", -1, "", ""]
        if self._is_ibm:
            values += ["", 0, -1, -1, ""]
        self._write("JOB_NEW", *values, now_s=now_s)

    def start(self, job: Job, now_s: float) -> None:
        """JOB_START and JOB_START_ACCEPT: it was sent to its hosts, which took it."""
        requirement = f"select[type == local] order[r15s:pg] {job.res_req}".strip()
        values: list[object] = [job.id, 4, 0, 0, _Verbatim(f"{self._cpu_factor:.1f}")]
        values += [len(job.hosts), *job.hosts, "", "", 0]
        if self._is_ibm:
            values += ["", job.index, "", 0, 0, requirement]
        else:
            values += [job.index, requirement]
        self._write("JOB_START", *values, now_s=now_s)
        if pid := job.wrapper_pid:
            self._write("JOB_START_ACCEPT", job.id, pid, pid, job.index, now_s=now_s)

    def execute(self, job: Job, now_s: float) -> None:
        """JOB_EXECUTE: its process is known."""
        self._write(
            "JOB_EXECUTE",
            *(job.id, job.uid, job.pid, job.cwd, job.home, job.user, job.pid, job.index),
            now_s=now_s,
        )

    def status(self, job: Job, now_s: float, reason: int = 0) -> None:
        """JOB_STATUS: its state changed."""
        number = _STATUS.get(job.state, 4)
        is_end = job.is_finished
        exit_status = 0
        if job.state != "DONE":
            exit_status = (job.exit_code or 0) << 8
        usage: tuple[object, ...] = (
            *(1, 0.01, 0.0, 4608, 0, -1, 0, 0, 700, 0, 0, 0, 24, -1, 0, 0, 0, 17, 3, -1),
            *(exit_status, job.index, 4608, 4608),
        )
        if not is_end or not job.hosts:
            usage = (0, 0, job.index, 0, 0)
        end_s = int(job.end_s or 0)
        self._write("JOB_STATUS", job.id, number, reason, 0, 0.01, end_s, *usage, now_s=now_s)
        if job.state == "DONE":
            self._write(
                "JOB_STATUS",
                *(job.id, number | _POST_DONE, 0, 0, 0.01, end_s, 0, 0, job.index, 4608, 4608),
                now_s=now_s,
            )
        if is_end:
            self._switch_if_full()

    def signal(self, job: Job, name: str, by: str, uid: int, now_s: float) -> None:
        """JOB_SIGNAL: somebody asked for a signal."""
        self._write("JOB_SIGNAL", job.id, uid, 1, name, job.index, by, now_s=now_s)

    def control(self, kind: str, code: int, name: str, by: str, why: str, now_s: float) -> None:
        """HOST_CTRL and QUEUE_CTRL: an administrator opened (1) or closed (2) something."""
        self._write(kind, code, name, 0, by, why, now_s=now_s)


def _options(job: Job) -> int:
    bits = (
        (_JOB_NAME, job.is_named),
        (_HOST, job.ask_hosts),
        (_IN_FILE, job.input),
        (_OUT_FILE, job.output),
        (_ERR_FILE, job.error),
        (_EXCLUSIVE, job.is_exclusive),
        (_RERUNNABLE, job.is_rerunnable),
        (_HOST_SPEC, job.limit_s is not None),
        (_DEPEND, job.dependency),
        (_RES_REQ, job.res_req),
        (_PROJECT | _QUEUE, True),
    )
    options = 0
    for bit, is_set in bits:
        if is_set:
            options |= bit
    return options


class _Verbatim(str):
    """A number with a certain number of digits, written as it is."""

    __slots__ = ()


def _quoted(text: str) -> str:
    """Return a string as it is written in a record."""
    if isinstance(text, _Verbatim):
        return text
    return '"' + text.replace("\n", " ").replace('"', '""') + '"'


def _word(value: object) -> str:
    """Return a value as it is written in a record."""
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, float):
        return f"{value:.4f}"
    return str(value)
