"""Starts, signals and cleans up the processes of jobs, one process group per node.

The server is the subreaper of all it starts, so no process can outlive its job, even if it left
its process group. Called by ``cluster``.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bftrainer.batch.process import kill_group, spawn
from bftrainer.model.errors import UsageError

JOB_VARIABLE = "BFT_LOCAL_JOB_ID"
NODE_VARIABLE = "BFT_LOCAL_NODE"
SHARED_TEMPLATE_VARIABLE = "BFT_SHARED_TEMPLATE"
TEMPLATE_JOB = "template"  # as long as the longest id of a job, whose place it keeps
PASSED_ON = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
_PR_SET_CHILD_SUBREAPER = 36


class JobProcesses:
    """All processes of all jobs; one leader (and its group) per job and node."""

    def __init__(self, directory: Path) -> None:
        setpriv = shutil.which("setpriv")
        if setpriv is None:
            raise UsageError(
                "BFT-1254",
                "The program 'setpriv' is not in PATH.",
                "Install the package util-linux.",
            )
        # The kernel kills every leader when the server dies, however it dies.
        self._prefix = (setpriv, "--pdeathsig", "KILL", "--")
        self._directory = directory
        self._leaders: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._template: dict[str, str] = {}  # the variable with its socket
        _become_subreaper()

    def start_template(self, socket_path: Path, modules: Sequence[str]) -> None:
        """Start a process with torch and ``modules`` imported that agents fork workers from.

        Agents for which it is not there or not the right one start one each, as elsewhere.
        """
        socket_path.unlink(missing_ok=True)  # of a server that was killed
        self.start(
            TEMPLATE_JOB,
            ("host",),
            (sys.executable, "-I", "-m", "trainers.agent.share", str(socket_path), *modules),
            environment={},
            log_path=self._directory / "template.log",
        )
        self._template = {SHARED_TEMPLATE_VARIABLE: str(socket_path)}

    def start(
        self,
        job_id: str,
        nodes: Sequence[str],
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        log_path: Path | None,
    ) -> None:
        """Start the job's program once on each of its nodes.

        Raises:
            OSError: the log cannot be opened or a process cannot be made; what was
                started already is left to ``sweep``.
        """
        leaders = self._leaders.setdefault(job_id, [])
        base = {k: os.environ[k] for k in PASSED_ON if k in os.environ}
        with Path(log_path or os.devnull).open("ab") as log:
            for node in nodes:
                ours = {JOB_VARIABLE: job_id, NODE_VARIABLE: node, **self._template}
                leaders.append(
                    spawn(
                        (*self._prefix, *argv),
                        env={**base, **environment, **ours},
                        cwd=self._directory,
                        stdout=log,
                        stderr=log,
                    )
                )

    def send(self, job_id: str, sig: signal.Signals) -> None:
        """Signal every process group of the job."""
        for leader in self._leaders.get(job_id, []):
            if leader.poll() is None:
                kill_group(leader.pid, sig)

    def has_left(self, job_id: str) -> bool:
        """Return whether all leaders of the job have ended."""
        return all(leader.poll() is not None for leader in self._leaders.get(job_id, []))

    def has_failed(self, job_id: str) -> bool:
        """Return whether a leader of the job ended with another status than 0, or by a signal."""
        return any(leader.returncode for leader in self._leaders.get(job_id, []))

    def sweep(self, ending: frozenset[str]) -> frozenset[str]:
        """Kill the orphans of these jobs; return the jobs without any process left.

        Orphans of every depth become our children, so it suffices to check those.
        """
        left_behind: set[str] = set()
        for pid in self._orphans():
            job_id = self._job_of(pid)
            if job_id is not None and (job_id in ending or job_id not in self._leaders):
                left_behind.add(job_id)
                _kill(pid)
        gone = frozenset(j for j in ending - left_behind if self.has_left(j))
        for job_id in gone:
            self._leaders.pop(job_id, None)
        return gone

    def kill_all(self) -> bool:
        """Kill every process there is; return whether none is left."""
        for job_id in list(self._leaders):
            self.send(job_id, signal.SIGKILL)
            if self.has_left(job_id):
                self._leaders.pop(job_id)
        orphans = self._orphans()
        for pid in orphans:
            _kill(pid)
        return not orphans and not self._leaders

    def _orphans(self) -> list[int]:
        """Return live children that are not leaders; reaps dead ones until there are none."""
        leaders = {p.pid for group in self._leaders.values() for p in group}
        while True:
            adopted = [pid for pid in _children() if pid not in leaders]
            reaped = [pid for pid in adopted if os.waitpid(pid, os.WNOHANG)[0] == pid]
            if not reaped:
                return adopted

    def _job_of(self, pid: int) -> str | None:
        """The job a process belongs to: by the environment it was given, or by its group."""
        mark = f"{JOB_VARIABLE}=".encode()
        try:
            entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            group = os.getpgid(pid)
        except OSError:
            return None  # ended meanwhile: the next sweep finds its children
        for entry in entries:
            if entry.startswith(mark):
                return entry[len(mark) :].decode(errors="replace")
        owners = (j for j, leaders in self._leaders.items() if group in [p.pid for p in leaders])
        return next(owners, None)


def _become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _children() -> list[int]:
    """Our children, adopted ones included (the server has one thread)."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in path.read_text(encoding="ascii").split()]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
