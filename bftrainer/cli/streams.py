"""Standard output and error, which may be closed, full, or lack letters.

What cannot be written raises an ``OSError`` that names the stream, once; after that the stream
takes everything and keeps nothing, so that the interpreter ends without a second complaint.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NAMES = {"stdout": "standard output", "stderr": "standard error"}


class _Output(io.FileIO):
    """A descriptor of the process that says which it is when it cannot be written."""

    def __init__(self, fd: int, name: str) -> None:
        super().__init__(fd, "w", closefd=False)
        self._label, self._is_lost = name, False

    def write(self, data: ReadableBuffer, /) -> int:
        """Write bytes; drop them once that has failed."""
        if self._is_lost:
            return memoryview(data).nbytes
        try:
            return super().write(data) or 0
        except OSError as problem:
            self._is_lost = True
            raise OSError(problem.errno, problem.strerror, self._label) from problem


def is_standard(problem: OSError) -> bool:
    """Return whether it was standard output or error that could not be written."""
    return problem.filename in _NAMES.values()


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Let every text be written: escaped where the locale lacks a letter, to nowhere if closed."""
    before = {name: getattr(sys, name) for name in _NAMES}
    for name, stream in before.items():
        setattr(sys, name, _prepared(stream, _NAMES[name]))
    try:
        yield
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)


def _prepared(stream: TextIO | None, name: str) -> TextIO:
    if stream is None:
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # a test's
    errors = stream.errors
    if not codecs.lookup(stream.encoding).name.startswith("utf"):
        errors = "backslashreplace"
    try:
        stream.flush()
        raw = _Output(stream.fileno(), name)
    except (OSError, ValueError):
        return stream
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
