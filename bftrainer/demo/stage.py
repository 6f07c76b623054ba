"""The temporary directory of a run, and its orderly end by signals. Called by ``run``."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from bftrainer.errors import BftError, UsageError

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first signal into KeyboardInterrupt; the clean-up that follows is not disturbed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Make a directory that is removed at the end, and kept and named after a failure."""
    # Short: sockets are made in it. Enterable: ordinary users' jobs run below it.
    path = Path(tempfile.mkdtemp(prefix="bft-demo-"))
    path.chmod(0o755)
    try:
        yield path
    except BftError as problem:
        raise BftError(
            problem.code,
            problem.cause,
            f"{problem.next_step} Logs are kept in {path}.",
            exit_code=problem.exit_code,
        ) from problem
    except Exception as problem:
        problem.add_note(f"Logs are kept in {path}.")
        raise
    except BaseException:  # interrupted: nobody will look
        shutil.rmtree(path, ignore_errors=True)
        raise
    shutil.rmtree(path)


def make_output_directory(path: Path) -> None:
    """Make the directory for picture and summary, or say why not (BFT-1026)."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as problem:
        raise UsageError(
            "BFT-1026",
            f"Nothing can be written to {path}: {problem.strerror}.",
            "Choose another directory with --out.",
        ) from problem
