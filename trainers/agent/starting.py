"""Starts templates, before anything slow is imported: importing torch takes longest.

Called by ``trainers.agent.__main__`` for the interpreters in the pilot's configuration, and by
``templates`` for any other. Imports only the standard library and a few small modules of ours;
``agent_config`` checks the configuration in full later.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bftrainer
from bftrainer import process
from bftrainer.errors import BftError
from bftrainer.wire.private import read_private
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


@dataclass(frozen=True, slots=True)
class Started:
    """A template's process, and our end of the socket to it."""

    process: subprocess.Popen[bytes]
    channel: socket.socket


def usual_environment() -> dict[str, str]:
    """Return the environment of a template, without variables of a trainer."""
    usual = {"OMP_NUM_THREADS": "1", **KEEP_FREED_MEMORY, **os.environ}
    return {**usual, "PYTHONUNBUFFERED": "1"}


def log_of(directory: Path, number: int) -> Path:
    """Return the log file of a template."""
    return directory / f"template-{number}.log"


def start_template(interpreter: str, environment: Mapping[str, str], log_path: Path) -> Started:
    """Start a template; call this in the main thread, as it dies with its starting thread.

    Raises:
        OSError: the interpreter cannot be run.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        argv = [interpreter, str(TEMPLATE_PROGRAM), str(theirs.fileno())]
        try:
            with log_path.open("ab") as log:
                child = process.spawn(
                    argv,
                    env={**usual_environment(), **environment},
                    pass_fds=(theirs.fileno(),),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        except OSError:
            ours.close()
            raise
    return Started(child, ours)


def start_early(argv: Sequence[str], waiter: SignalWaiter) -> dict[str, Started]:
    """Start the templates in the configuration named on our command line.

    If the configuration is invalid, nothing is started; the agent reports the error later.
    """
    try:
        config = json.loads(read_private(Path(argv[argv.index("--config") + 1])))
        interpreters, directory = config["interpreters"], Path(config["state_dir"])
        return _start_all(interpreters, directory, waiter)
    except (BftError, OSError, ValueError, LookupError, TypeError):
        return {}


def _start_all(interpreters: Any, directory: Path, waiter: SignalWaiter) -> dict[str, Started]:
    started: dict[str, Started] = {}

    def vanish() -> None:
        for template in started.values():
            process.kill_group(template.process.pid)
        os._exit(0)

    # Until the agent sets its own handlers.
    waiter.on_leave = waiter.on_overdue = vanish
    for number, interpreter in enumerate(dict.fromkeys(map(str, interpreters))):
        started[interpreter] = start_template(interpreter, {}, log_of(directory, number))
    return started
