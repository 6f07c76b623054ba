"""Starts processes: argument lists only, never a shell.

``run`` runs a command to its end, with limits on time and output; ``spawn`` starts a long-lived
child (agents, templates, test daemons); ``attached`` lends a program our terminal; ``become``
replaces this process. ``forbid_core_files`` holds for this process and all that it starts.
"""

from __future__ import annotations

import contextlib
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from bftrainer.batch.awake import Patience

DEFAULT_OUTPUT_CAP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The result of a command."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    wall_s: float
    timed_out: bool = False
    truncated: bool = False

    @property
    def is_ok(self) -> bool:
        """Return whether the command ended by itself with status 0 and complete output."""
        return self.returncode == 0 and not self.timed_out and not self.truncated


def own_python(module: str, *arguments: str, is_isolated: bool = False) -> tuple[str, ...]:
    """Return the command line of a module of ours, which imports none of the working directory.

    Isolated, it imports none of the user's packages and of PYTHONPATH either.
    """
    return (sys.executable, "-I" if is_isolated else "-P", "-m", module, *arguments)


def forbid_core_files() -> None:
    """Let no crash write our memory to a file: keys, and credentials of trackers, are in it.

    The soft limit alone, so that a preamble or a program may raise it up to the hard one.
    """
    _, hard_bytes = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard_bytes))


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str = "",
    output_cap_bytes: int = DEFAULT_OUTPUT_CAP_BYTES,
) -> Completed:
    """Run a command to its end; kill its whole process group at the time limit.

    Time in which this process slept does not count: the command may have answered meanwhile.

    Never raises for what the command does: a missing program is returncode 127, a
    time-out is ``timed_out``, too much output is ``truncated`` (and killed).
    """
    started = time.monotonic()
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as problem:
        return Completed(
            argv=tuple(argv), returncode=127, stdout="", stderr=str(problem), wall_s=0.0
        )
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise RuntimeError("pipes were requested")
    patience = Patience(timeout_s)
    out, err = bytearray(), bytearray()
    outputs = {child.stdout.fileno(): out, child.stderr.fileno(): err}
    timed_out, truncated = _exchange(
        child.stdin, stdin.encode(), outputs, patience, output_cap_bytes
    )
    if not timed_out and not truncated:
        # Both pipes are closed; the command may still linger (or have daemonised).
        timed_out = not _ends(child, patience)
    if timed_out or truncated:
        kill_group(child.pid)
    for stream in (child.stdin, child.stdout, child.stderr):
        stream.close()
    return Completed(
        argv=tuple(argv),
        returncode=child.wait(),
        stdout=out[:output_cap_bytes].decode(errors="replace"),
        stderr=err[:output_cap_bytes].decode(errors="replace"),
        wall_s=time.monotonic() - started,
        timed_out=timed_out,
        truncated=truncated,
    )


def _ends(child: subprocess.Popen[bytes], patience: Patience) -> bool:
    """Wait until a process has ended; return whether it has."""
    while True:
        rest_s = patience.rest_s()
        try:
            child.wait(rest_s)
        except subprocess.TimeoutExpired:
            if rest_s <= 0.0:
                return False
        else:
            return True


def _exchange(
    stdin: IO[bytes],
    text: bytes,
    buffers: Mapping[int, bytearray],
    patience: Patience,
    cap_bytes: int,
) -> tuple[bool, bool]:
    """Write the input and read both outputs to their end; return (timed out, too much output)."""
    unsent = memoryview(text)
    os.set_blocking(stdin.fileno(), False)  # it may never read
    with selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_WRITE)
        for fd in buffers:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            rest_s = patience.rest_s()
            if rest_s <= 0:
                return True, False
            for key, _ in selector.select(rest_s):
                if key.fileobj is stdin:
                    unsent = _send(key.fd, unsent)
                    if not unsent:
                        selector.unregister(stdin)
                        stdin.close()
                    continue
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                buffers[key.fd].extend(chunk)
            if sum(map(len, buffers.values())) > cap_bytes:
                return False, True
    return False, False


def _send(fd: int, unsent: memoryview) -> memoryview:
    """Write what fits into the pipe and return the rest; nothing if the pipe is closed."""
    if not unsent:
        return unsent
    try:
        return unsent[os.write(fd, unsent[: 1 << 16]) :]
    except BrokenPipeError:
        return unsent[:0]  # its status and output explain it


def kill_group(pgid: int, sig: signal.Signals = signal.SIGKILL) -> None:
    """Signal a process group that may already be gone."""
    try:
        os.killpg(pgid, sig)
    except (ProcessLookupError, PermissionError):
        return


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdout: IO[bytes] | int = subprocess.DEVNULL,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    new_session: bool = True,
) -> subprocess.Popen[bytes]:
    """Start a child that outlives this call; the caller must end and reap it."""
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=env,
        cwd=cwd,
        pass_fds=tuple(pass_fds),
        start_new_session=new_session,
    )


def attached(argv: Sequence[str]) -> int:
    """Run a program with our input, output and terminal, and return its exit status.

    What a terminal sends to us (Ctrl-C) is sent to the program as well: it decides.

    Returns:
        128 + N: signal N ended it.

    Raises:
        OSError: it cannot be started.
    """
    child = subprocess.Popen(list(argv))
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            status = child.wait()
            return status if status >= 0 else 128 - status


def become(argv: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
    """Replace this process by another program, with the same pid and open descriptors.

    Raises:
        OSError: it cannot be started.
    """
    os.execve(argv[0], list(argv), dict(env))  # noqa: S606 - no shell wanted
