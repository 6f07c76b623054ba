"""Templates started before anything slow is imported: torch takes longest, so it goes first.

An interpreter comes in; the process and our end of its socket go out. Called by
``trainers.agent.__main__`` for the interpreters that the pilot's configuration names,
and by ``templates`` for any other. Imports nothing but the standard library and two
small modules of ours; the configuration is checked in full by ``agent_config``, later.
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
# Gradients are allocated and freed at every step. As it comes, glibc gives their memory back
# to the kernel each time and has it cleared page by page when it asks again: 24,000 page
# faults in a step of a model of 25 M parameters, a tenth of the step, and more in the steps
# around a rescale, when several processes do so at once. So workers keep what they freed.
# 32 MiB is the largest threshold glibc takes (mallopt(3)); tensors above it are still mapped
# one by one. The variables mean nothing to other allocators.
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
    """What a template starts with when a trainer asks for nothing special."""
    usual = {"OMP_NUM_THREADS": "1", **KEEP_FREED_MEMORY, **os.environ}
    return {**usual, "PYTHONUNBUFFERED": "1"}


def log_of(directory: Path, number: int) -> Path:
    """Where the template with this number writes."""
    return directory / f"template-{number}.log"


def start_template(interpreter: str, environment: Mapping[str, str], log_path: Path) -> Started:
    """Start a template in the main thread: it dies with the thread that started it.

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
    """Start the templates that the configuration on our command line names.

    Whatever is wrong with it is said by those who read it next, so nothing is started then.
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

    # Until the agent can do better.
    waiter.on_leave = waiter.on_overdue = vanish
    for number, interpreter in enumerate(dict.fromkeys(map(str, interpreters))):
        started[interpreter] = start_template(interpreter, {}, log_of(directory, number))
    return started
