"""The one place that starts processes: argument lists only, never a shell.

``run`` is for commands whose answer we need (bounded in time and output);
``spawn`` is for children that live on (agents, templates, test daemons).
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DEFAULT_OUTPUT_CAP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What a command left behind."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    wall_s: float
    timed_out: bool = False
    truncated: bool = False

    @property
    def is_ok(self) -> bool:
        """Whether the command ended by itself, with status 0, all output read."""
        return self.returncode == 0 and not self.timed_out and not self.truncated


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
            env=None if env is None else dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as problem:
        return Completed(
            argv=tuple(argv), returncode=127, stdout="", stderr=str(problem), wall_s=0.0
        )
    out, err, timed_out, truncated = _communicate(
        child, stdin.encode(), started + timeout_s, output_cap_bytes
    )
    return Completed(
        argv=tuple(argv),
        returncode=child.wait(),
        stdout=out.decode(errors="replace"),
        stderr=err.decode(errors="replace"),
        wall_s=time.monotonic() - started,
        timed_out=timed_out,
        truncated=truncated,
    )


def _communicate(
    child: subprocess.Popen[bytes], stdin: bytes, deadline: float, cap_bytes: int
) -> tuple[bytes, bytes, bool, bool]:
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise RuntimeError("pipes were requested")
    try:
        child.stdin.write(stdin)  # short inputs only: batch scripts of a few kB
        child.stdin.close()
    except BrokenPipeError:
        pass  # it ended or closed its input unread: its status and output say why
    buffers: dict[int, bytearray] = {
        child.stdout.fileno(): bytearray(),
        child.stderr.fileno(): bytearray(),
    }
    timed_out = truncated = False
    with selectors.DefaultSelector() as selector:
        for stream in (child.stdout, child.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                timed_out = True
                break
            for key, _ in selector.select(remaining):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                    continue
                buffers[key.fd] += chunk
            if sum(map(len, buffers.values())) > cap_bytes:
                truncated = True
                break
    if not timed_out and not truncated:
        # Both pipes are closed; the command may still linger (or have daemonised).
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            timed_out = True
    if timed_out or truncated:
        kill_group(child.pid)
    out, err = (bytes(buffers[s.fileno()][:cap_bytes]) for s in (child.stdout, child.stderr))
    child.stdout.close()
    child.stderr.close()
    return out, err, timed_out, truncated


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
    """Start a child that outlives this call; the caller owns its end."""
    return subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=None if env is None else dict(env),
        cwd=cwd,
        pass_fds=tuple(pass_fds),
        start_new_session=new_session,
    )
