"""The log: one line per record, and each sentence about a trouble once.

Quoted text stays within its line, so that what agents, workers and the batch system wrote cannot
look like a record of ours.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from logging.handlers import WatchedFileHandler
from pathlib import Path
from textwrap import indent
from typing import Any

from bftrainer.ground.fields import in_one_line
from bftrainer.model.errors import BftError, ExitCode

MOST = 100  # sentences of one trouble; later ones are not logged


class OneLine(logging.Formatter):
    """Escapes line breaks and control characters; tracebacks follow, indented."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the library's name
        """Return the line."""
        return in_one_line(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802  # the library's name
        """Return the traceback."""
        return indent(super().formatException(ei), "    ")


class RotatedFile(WatchedFileHandler):
    """Opens its file again after it was renamed, as logrotate does (packaging/logrotate)."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; to standard error while there can be no new file."""
        try:
            super().emit(record)
        except OSError:
            aside = logging.StreamHandler()
            aside.setFormatter(self.formatter)
            aside.emit(record)


def configure_logging(level: str, log_file: Path | None) -> None:
    """Send our loggers to ``log_file`` (appended, and opened again when renamed) or stderr.

    Raises:
        BftError: BFT-2215, the file cannot be opened.
    """
    handler: logging.Handler
    try:
        handler = logging.StreamHandler()
        if log_file:
            handler = RotatedFile(log_file)
    except OSError as problem:
        raise BftError(
            "BFT-2215",
            f"The log file {log_file} cannot be opened: {problem.strerror}.",
            "Name a file that the daemon's user may write, or omit --log-file.",
            exit_code=ExitCode.NOT_PERMITTED,
        ) from problem
    formatter = OneLine(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
    )
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger("bftrainer")
    root.setLevel(level.upper())
    root.addHandler(handler)
    root.propagate = False


class SaidOnce:
    """The sentences said since all was well."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def new(self, sentences: Iterable[str]) -> tuple[str, ...]:
        """Return the sentences that were not said yet."""
        fresh = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._said]
        del fresh[max(0, MOST - len(self._said)) :]
        self._said.update(fresh)
        return tuple(fresh)

    def is_over(self) -> bool:
        """Forget the trouble; return whether there was one."""
        was, self._said = bool(self._said), set()
        return was
