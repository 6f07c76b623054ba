"""Starts templates, before anything slow is imported: importing torch takes longest.

Called by ``trainers.agent.__main__`` for the interpreters in the pilot's configuration, and by
``templates`` for any other. Imports only the standard library and a few small modules of ours;
``AgentConfig`` checks the configuration in full later.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bftrainer
from bftrainer.batch import process
from bftrainer.elastic.process.worker_keeper import end_below, remove, temporary_place
from bftrainer.elastic.shared_template import peer_uid
from bftrainer.fleet.wire.private import read_private
from bftrainer.ground.ports import VARIABLE
from bftrainer.model.errors import BftError
from bftrainer.model.preamble import under
from trainers.agent.signals import SignalWaiter
from trainers.agent.surroundings import leave_pilot

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
_OWN = re.compile(r"bft-[0-9a-f]{8}\Z", re.ASCII)  # short: paths of sockets below are limited
_FRESH_S = 60.0  # a directory younger than this may not have been locked yet


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


class PilotDirectory:
    """A directory for the temporary files of all that this pilot starts: their ``TMPDIR``.

    Locked while the agent lives, on this host's file system in whatever container. So a later
    agent of the same user can remove what one leaves that was killed.
    """

    def __init__(self) -> None:
        self._base = base = temporary_place()
        self.path: Path | None = None  # it could not be made: all use the directory above
        with suppress(OSError, KeyError):  # a user without a name
            directory = base / f"bft-{secrets.token_hex(4)}"
            directory.mkdir(mode=0o700)
            self.path, self._is_locked = directory, _lock(directory) is not None
            os.environ["TMPDIR"] = str(directory)
            # What torch.compile has built stays where later pilots find it, by torch's own name.
            cache = base / f"torchinductor_{getpass.getuser()}"
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))

    def remove(self) -> None:
        """Remove it with all that is left there (blocking)."""
        if self.path is not None:
            remove(self.path, ())

    def tidy(self) -> None:
        """Remove those of our user's pilots that were killed (blocking)."""
        if self.path is None or not self._is_locked:  # this file system has no locks
            return
        with suppress(OSError):
            for path in self._base.iterdir():
                with suppress(OSError):
                    if _OWN.match(path.name) and path != self.path and _is_left(path):
                        remove(path, ())


def _is_left(directory: Path) -> bool:
    status = directory.lstat()
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _FRESH_S:
        return False
    if (lock := _lock(directory)) is None:
        return False
    os.close(lock)
    return True


def _lock(directory: Path) -> int | None:
    """Return a descriptor that holds the lock of a directory; None: another process has it."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        return None
    return fd


def usual_environment() -> dict[str, str]:
    """Return the environment of a template, without variables of a trainer or of the pilot."""
    usual = {"OMP_NUM_THREADS": "1", **KEEP_FREED_MEMORY, **os.environ}
    leave_pilot(usual)
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
    variables = {**usual_environment(), **environment}
    if (path := os.environ.get(SHARED_TEMPLATE)) and not preamble:
        request = {"interpreter": interpreter, "environment": variables, "log": str(log_path)}
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
                    env=variables,
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
            answer, fds, _, _ = socket.recv_fds(channel, 64, 1)
            if fds:
                return Started(int(json.loads(answer)["serving"]), fds[0], channel)
    channel.close()
    return None


def start_early(
    argv: Sequence[str], waiter: SignalWaiter, directory: PilotDirectory
) -> dict[str, Started]:
    """Start the templates in the configuration named on our command line.

    If the configuration is invalid, nothing is started; the agent reports the error later.
    """
    try:
        path = Path(argv[argv.index("--config") + 1])
        config = json.loads(read_private(path))
        if config.get("ports"):
            os.environ[VARIABLE] = str(config["ports"])  # for workers
        interpreters, logs = config["interpreters"], path.parent / config["state_dir"]
        return _start_all(interpreters, logs, waiter, directory)
    except (BftError, OSError, ValueError, LookupError, TypeError):
        return {}


def _start_all(
    interpreters: Any, logs: Path, waiter: SignalWaiter, directory: PilotDirectory
) -> dict[str, Started]:
    started: dict[str, Started] = {}

    def vanish() -> None:
        for template in started.values():
            template.kill()
        directory.remove()
        os._exit(0)

    # Until the agent sets its own handlers.
    waiter.on_leave = waiter.on_overdue = vanish
    for number, interpreter in enumerate(dict.fromkeys(map(str, interpreters))):
        started[interpreter] = start_template(interpreter, {}, log_of(logs, number))
    return started
