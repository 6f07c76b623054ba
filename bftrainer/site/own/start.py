"""Starts a user's own daemon, detached from the terminal, and waits until it answers.

Called by ``bftrainer up``. The process belongs to a session of its own, so the end of a login does
not end it. Where a site ends all processes of a user at logout, ``--as-job`` is the way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bftrainer.batch import process
from bftrainer.ground.regular_file import check_directory
from bftrainer.model.errors import BftError, ExitCode, exit_code_of
from bftrainer.model.site import Wish
from bftrainer.model.views import StatusView
from bftrainer.site.own.plan import OwnSites

START_TIMEOUT_S = 60.0
POLICY_NAME, PREAMBLE_NAME = "policy.yaml", "preamble.sh"
LOG_NAME, OUT_NAME = "daemon.log", "daemon.out"


def daemon_argv(
    state_dir: Path, batch_system: str, bind: str, announced: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the daemon's command line."""
    argv = [
        *process.own_python("bftrainer", "daemon", "--batch-system", batch_system),
        *("--state-dir", str(state_dir), "--policy", str(state_dir / POLICY_NAME)),
        *("--log-file", str(state_dir / LOG_NAME), "--shared-state"),
    ]
    if bind:
        argv += ["--bind", bind]
    for address in announced:
        argv += ["--announce", address]
    return tuple(argv)


def write_files(state_dir: Path, policy: str, preamble: str) -> None:
    """Write the policy and the preamble of the daemon.

    Raises:
        BftError: BFT-1286, the directory cannot be used.
    """
    texts = {POLICY_NAME: policy}
    if preamble:
        texts[PREAMBLE_NAME] = preamble
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_directory(state_dir)
        for name, text in texts.items():
            (state_dir / name).write_text(text)
            (state_dir / name).chmod(0o600)
    except OSError as problem:
        raise BftError(
            "BFT-1286",
            f"{state_dir} cannot be written: {problem.strerror}.",
            "Free space in your home directory, or name another one with BFTRAINER_STATE_DIR.",
            exit_code=exit_code_of(problem),
        ) from problem


def start(argv: tuple[str, ...], state_dir: Path, answers: Callable[[], StatusView]) -> str:
    """Start the daemon, wait until it answers and say where it runs.

    Raises:
        BftError: BFT-1286, it ended, or does not answer in time.
    """
    out = state_dir / OUT_NAME
    with out.open("wb") as stream:
        child = process.spawn(argv, stdout=stream, stderr=stream, cwd=Path("/"), env=os.environ)
    status = _wait(answers, lambda: child.poll() is None)
    if status is not None:
        return f"Your daemon runs (process {status.pid}, {state_dir})."
    is_running = child.poll() is None
    if is_running:
        child.terminate()
    raise _failed(out, state_dir / LOG_NAME, is_running=is_running)


def start_as_job(
    sites: OwnSites,
    argv: tuple[str, ...],
    state_dir: Path,
    wish: Wish,
    answers: Callable[[], StatusView],
) -> str:
    """Submit the daemon as a job; wait until it answers or is seen waiting; say which.

    Raises:
        BftError: BFT-1286, the job has ended; BFT-1287, it was refused.
    """
    out = state_dir / OUT_NAME
    out.write_bytes(b"")
    job = sites.submit_daemon(argv, out, wish)
    status = _wait(answers, lambda: sites.find_daemon() is not None, pause_s=1.0)
    if status is not None:
        return f"Your daemon runs in job {job.job_id} (process {status.pid}, {state_dir})."
    job_now = sites.find_daemon()
    if job_now is None:
        raise _failed(out, state_dir / LOG_NAME, is_running=False)
    return (
        f"Your daemon's job {job_now.job_id} is {job_now.state} ({job_now.reason}); verbs work when"
        " it runs, and --job-partition names another partition."
    )


def _wait(
    answers: Callable[[], StatusView], lives: Callable[[], bool], *, pause_s: float = 0.05
) -> StatusView | None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and lives():
        try:
            return answers()
        except BftError:
            time.sleep(pause_s)  # not yet
    return None


def _failed(out: Path, log: Path, *, is_running: bool) -> BftError:
    reason, next_step = _last_error(out.read_text(errors="replace"))
    if is_running:
        reason = f"it did not answer within {START_TIMEOUT_S:g} s"
    return BftError(
        "BFT-1286",
        f"The daemon did not start: {reason or 'no message'}",
        next_step or f"Read {out} and {log}.",
        exit_code=ExitCode.DAEMON_UNREACHABLE,
    )


def _last_error(output: str) -> tuple[str, str]:
    """Return the error that a daemon printed, else its last line, and the next step."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error ")]
    next_steps = [line for line in lines if line.startswith("next: ")]
    reason = next_step = ""
    if lines:
        reason = lines[-1]
    if errors:
        reason = errors[0]
    if next_steps:
        next_step = next_steps[0].removeprefix("next: ")
    return reason.removeprefix("error "), next_step
