"""Workers that run one of our modules, in a process started by the agent itself.

Pid and end are reported to ``TemplateEvents``, as for forked workers. Such a worker leads the
process group of all that it starts; the group ends with it, and with the agent. Called by
``trainers.agent.workers``.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from bftrainer.batch import process
from bftrainer.elastic.process.worker_keeper import own_place, remove_shared, remove_unmapped
from trainers.agent.preambles import NO_PREAMBLE, Output, Preamble
from trainers.agent.start import KILLED
from trainers.agent.templates import TemplateEvents, when_ended

LOG_NAME = "programs.log"  # output of the modules themselves


class ProgramPool:
    """All workers of an agent that are not forks of a template."""

    def __init__(self, *, log_dir: Path, events: TemplateEvents) -> None:
        self._log_path = log_dir / LOG_NAME
        self._events = events
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        worker_id: str,
        module: str,
        worker_end: socket.socket,
        *,
        preamble: Preamble = NO_PREAMBLE,
        log_path: str = "",
    ) -> None:
        """Start ``python -I -m MODULE FD``; takes over ``worker_end``.

        The module runs the ``preamble``. What this prints on failure is added to ``log_path``.
        """
        output = Output(self._log_path)
        with worker_end:
            argv = process.own_python(module, str(worker_end.fileno()), is_isolated=True)
            try:
                with self._log_path.open("ab") as log:
                    child = process.spawn(
                        argv, pass_fds=(worker_end.fileno(),), stdout=log, stderr=log
                    )
            except OSError as problem:
                self._events.exited(worker_id, KILLED, f"{module} cannot be started: {problem}")
                return
        self._running[worker_id] = child

        def ended() -> None:
            # Before it is reaped: its pid is not reused until then.
            process.kill_group(child.pid)
            returncode = child.wait()
            self._running.pop(worker_id, None)
            remove_shared({child.pid} | self._events.sweep(), own_place(child.pid))
            remove_unmapped()
            cause = ""
            if returncode > 0 and preamble.path:
                cause = output.why(returncode, preamble)
                output.copy_to(log_path)
            elif returncode > 0:
                cause = f"see {self._log_path} on {os.uname().nodename}"
            self._events.exited(worker_id, returncode, cause)

        when_ended(os.pidfd_open(child.pid), ended)
        self._events.forked(worker_id, child.pid)

    def kill(self, worker_id: str) -> bool:
        """SIGKILL a worker's process group; False when it is not one of ours."""
        child = self._running.get(worker_id)
        if child is not None:
            process.kill_group(child.pid)
        return child is not None

    def pids(self) -> set[int]:
        """Return those of the processes."""
        return {child.pid for child in self._running.values()}

    def kill_all(self) -> None:
        """SIGKILL all groups; safe from any thread."""
        for child in list(self._running.values()):
            process.kill_group(child.pid)
