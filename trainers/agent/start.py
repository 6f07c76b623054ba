"""Starts templates, before anything slow is imported: importing torch takes longest.

Called by ``trainers.agent.__main__`` for the interpreters in the pilot's configuration, and by
``templates`` for any other. Imports only the standard library and a few small modules of ours;
``AgentConfig`` checks the configuration in full later.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bftrainer
from bftrainer.batch import process
from bftrainer.elastic.ports import VARIABLE
from bftrainer.elastic.shared_template import peer_uid
from bftrainer.elastic.worker_keeper import end_below
from bftrainer.fleet.wire.private import read_private
from bftrainer.model.errors import BftError
from bftrainer.model.preamble import under
from trainers.agent.signals import SignalWaiter

TEMPLATE_PROGRAM = Path(bftrainer.__file__).resolve().parent / "elastic" / "template.py"
# Gradients are allocated and freed in every step. By default glibc returns their memory to the
# kernel each time, which clears it again page by page: 24,000 page faults in a step of a model of
# 25 M parameters, a tenth of the step, and more around a rescale, when several processes do so at
# once. So workers keep freed memory. 32 MiB is the largest threshold glibc accepts (mallopt(3));
# larger tensors are still mapped individually. Other allocators ignore these variables.
KEEP_FREED_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
}


# Names the socket of a template that serves all agents of this host.
SHARED_TEMPLATE = "BFT_SHARED_TEMPLATE"
SHARED_PATIENCE_S = 2.0
KILLED = -9


@dataclass(frozen=True, slots=True)
class Started:
    """A template's process, and our end of the socket to it."""

    pid: int
    pidfd: int
    channel: socket.socket
    child: subprocess.Popen[bytes] | None = None  # None: a copy of the host's template

    def kill(self) -> set[int]:
        """SIGKILL it, and what it started unless that is ours to adopt; safe from any thread.

        Returns the pids of what it started.
        """
        if self.child is not None:
            process.kill_group(self.pid)
            return set()
        below = end_below(self.pid)  # it adopts them while it lives
        with suppress(OSError):  # it has ended
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        return below

    def reap(self) -> int:
        """Return its status when it has ended; that of a copy nobody tells us."""
        return KILLED if self.child is None else self.child.wait()


def usual_environment() -> dict[str, str]:
    """Return the environment of a template, without variables of a trainer."""
    usual = {"OMP_NUM_THREADS": "1", **KEEP_FREED_MEMORY, **os.environ}
    return {**usual, "PYTHONUNBUFFERED": "1"}


def log_of(directory: Path, number: int) -> Path:
    """Return the log file of a template."""
    return directory / f"template-{number}.log"


def start_template(
    interpreter: str,
    environment: Mapping[str, str],
    log_path: Path,
    *,
    preamble: str = "",
    cwd: str = "",
) -> Started:
    """Start a template, or use the host's if it is like the one wanted.

    That is never so for one under a ``preamble`` (a path), which starts in ``cwd``.

    Call this in the main thread: a template of our own dies with its starting thread.

    Raises:
        OSError: the interpreter cannot be run.
    """
    wanted = {**usual_environment(), **environment}
    if (path := os.environ.get(SHARED_TEMPLATE)) and not preamble:
        request = {"interpreter": interpreter, "environment": wanted, "log": str(log_path)}
        if shared := _shared(path, json.dumps({"serve": request}).encode()):
            return shared
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        argv: Sequence[str] = [interpreter, str(TEMPLATE_PROGRAM), str(theirs.fileno())]
        if preamble:
            argv = under(preamble, argv)
        try:
            with log_path.open("ab") as log:
                child = process.spawn(
                    argv,
                    env=wanted,
                    cwd=Path(cwd) if cwd else None,
                    pass_fds=(theirs.fileno(),),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        except OSError:
            ours.close()
            raise
    return Started(child.pid, os.pidfd_open(child.pid), ours, child)


def _shared(path: str, request: bytes) -> Started | None:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    channel.settimeout(SHARED_PATIENCE_S)
    with suppress(OSError):
        channel.connect(path)
        if peer_uid(channel) == os.getuid():
            channel.send(request)
            said, fds, _, _ = socket.recv_fds(channel, 64, 1)
            if fds:
                return Started(int(json.loads(said)["serving"]), fds[0], channel)
    channel.close()
    return None


def start_early(argv: Sequence[str], waiter: SignalWaiter) -> dict[str, Started]:
    """Start the templates in the configuration named on our command line.

    If the configuration is invalid, nothing is started; the agent reports the error later.
    """
    try:
        path = Path(argv[argv.index("--config") + 1])
        config = json.loads(read_private(path))
        if config.get("ports"):
            os.environ[VARIABLE] = str(config["ports"])  # for workers
        interpreters, directory = config["interpreters"], path.parent / config["state_dir"]
        return _start_all(interpreters, directory, waiter)
    except (BftError, OSError, ValueError, LookupError, TypeError):
        return {}


def _start_all(interpreters: Any, directory: Path, waiter: SignalWaiter) -> dict[str, Started]:
    started: dict[str, Started] = {}

    def vanish() -> None:
        for template in started.values():
            template.kill()
        os._exit(0)

    # Until the agent sets its own handlers.
    waiter.on_leave = waiter.on_overdue = vanish
    for number, interpreter in enumerate(dict.fromkeys(map(str, interpreters))):
        started[interpreter] = start_template(interpreter, {}, log_of(directory, number))
    return started
