"""Starts a user's own daemon, detached from the terminal, and waits until it answers.

Called by ``bftrainer up``. The process belongs to a session of its own, so the end of a login does
not end it. Where a site ends all processes of a user at logout, ``--as-job`` is the way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bftrainer import process
from bftrainer.errors import BftError, ExitCode
from bftrainer.model.views import StatusView

START_TIMEOUT_S = 60.0
POLICY_NAME, LOG_NAME, OUT_NAME = "policy.yaml", "daemon.log", "daemon.out"


def daemon_argv(state_dir: Path, batch_system: str, bind: str) -> tuple[str, ...]:
    """Return the daemon's command line."""
    return (
        *(sys.executable, "-m", "bftrainer", "daemon", "--batch-system", batch_system),
        *("--state-dir", str(state_dir), "--policy", str(state_dir / POLICY_NAME)),
        *("--log-file", str(state_dir / LOG_NAME)),
        *(("--bind", bind) if bind else ()),
    )


def write_policy(state_dir: Path, text: str) -> Path:
    """Write the policy file of the daemon.

    Raises:
        BftError: BFT-1286, the directory cannot be used.
    """
    path = state_dir / POLICY_NAME
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_text(text)
        path.chmod(0o600)
    except OSError as problem:
        raise BftError(
            "BFT-1286",
            f"{path} cannot be written: {problem.strerror}.",
            "Free space in your home directory, or name another one with BFTRAINER_STATE_DIR.",
        ) from problem
    return path


def start(argv: tuple[str, ...], state_dir: Path, answers: Callable[[], StatusView]) -> StatusView:
    """Start the daemon and wait until it answers.

    Raises:
        BftError: BFT-1286, it ended, or does not answer in time.
    """
    out = state_dir / OUT_NAME
    with out.open("wb") as stream:
        child = process.spawn(argv, stdout=stream, stderr=stream, cwd=Path("/"), env=os.environ)
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and child.poll() is None:
        try:
            return answers()
        except BftError:
            time.sleep(0.05)  # not yet
    return _failed(child, out, state_dir / LOG_NAME)


def _failed(child: subprocess.Popen[bytes], out: Path, log: Path) -> StatusView:
    is_running = child.poll() is None
    if is_running:
        child.terminate()
    words = [line for line in out.read_text(errors="replace").splitlines() if line.strip()]
    error = next((line for line in words if line.startswith("error ")), words[-1] if words else "")
    next_step = next((line[6:] for line in words if line.startswith("next: ")), "")
    reason = f"it did not answer within {START_TIMEOUT_S:g} s" if is_running else error
    raise BftError(
        "BFT-1286",
        f"The daemon did not start: {reason.removeprefix('error ') or 'no message'}",
        next_step or f"Read {out} and {log}.",
        exit_code=ExitCode.DAEMON_UNREACHABLE,
    )
