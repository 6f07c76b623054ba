"""Logging set-up: one line per record, UTC, to a file or to stderr."""

from __future__ import annotations

import logging
import time
from pathlib import Path


def configure_logging(level: str, log_file: Path | None) -> None:
    """Send our loggers to ``log_file`` (appended) or stderr."""
    handler: logging.Handler = (
        logging.FileHandler(log_file) if log_file is not None else logging.StreamHandler()
    )
    formatter = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger("bftrainer")
    root.setLevel(level.upper())
    root.addHandler(handler)
    root.propagate = False
