"""Workers of runtime ``mpi`` as real processes, where a ``Controller`` expects a template."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bftrainer.batch import process
from tests.elastic.controller import TemplateProcess


class MpiWorkers(TemplateProcess):
    """Starts each worker as an agent does: ``python -I -m trainers.mpi FD``."""

    def __init__(self, directory: Path) -> None:
        self._log = (directory / "programs.log").open("ab")
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        super().__init__(directory)

    def _start_template(self, *given: object) -> None:
        del given
        self.said = [{"ready": {}}]  # there is none to wait for

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self._children.values():
            process.kill_group(child.pid)
            child.wait()
        self.selector.close()
        self._log.close()

    def request(self, body: dict[str, Any], fds: Sequence[int]) -> None:
        """Start a worker."""
        config = body["fork"]
        worker = self.workers[config["worker_id"]]
        first = {
            "config": {"type": "WorkerConfig", **config},
            "options": {"interpreter": sys.executable},
        }
        worker.channel.sendall(json.dumps(first).encode() + b"\n")
        fd = os.dup(fds[0])
        argv = [sys.executable, "-I", "-m", "trainers.mpi", str(fd)]
        child = process.spawn(argv, pass_fds=(fd,), stdout=self._log, stderr=self._log)
        os.close(fd)
        worker.pid = child.pid
        self._children[worker.worker_id] = child

    def pump(self, timeout_s: float) -> None:
        """Read what workers said; see who has ended."""
        if self.selector.get_map():
            super().pump(timeout_s)
        for worker_id, child in self._children.items():
            worker = self.workers[worker_id]
            if worker.returncode is None and child.poll() is not None:
                process.kill_group(child.pid)
                worker.returncode = child.returncode
