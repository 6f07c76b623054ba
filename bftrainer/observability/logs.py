"""Logging set-up: one line per record, UTC, to a file or to stderr."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from bftrainer.errors import BftError, ExitCode


def configure_logging(level: str, log_file: Path | None) -> None:
    """Send our loggers to ``log_file`` (appended) or stderr.

    Raises:
        BftError: BFT-2215, the file cannot be opened.
    """
    handler: logging.Handler
    try:
        handler = logging.FileHandler(log_file) if log_file else logging.StreamHandler()
    except OSError as problem:
        raise BftError(
            "BFT-2215",
            f"The log file {log_file} cannot be opened: {problem.strerror}.",
            "Name a file that the user of the daemon may write, or leave --log-file out.",
            exit_code=ExitCode.NOT_PERMITTED,
        ) from problem
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger("bftrainer")
    root.setLevel(level.upper())
    root.addHandler(handler)
    root.propagate = False
