"""Text files line by line, gzipped or not, for the readers of job logs.

Gives (line number, text) pairs and reports how much of the file is read; whatever is
wrong with the bytes becomes a ``TraceError`` with the line.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bftrainer.batch.traces.errors import malformed, unreadable

Progress = Callable[[float], None]
MAX_LINE = 16 << 20  # characters; a job on every node of the largest machine stays below
LINES_PER_REPORT = 10_000


def read_lines(path: Path, progress: Progress | None = None) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not empty.

    Bytes that are no UTF-8 are escaped: names and comments of jobs may be in any encoding.
    """
    number = 0
    try:
        total = max(1, path.stat().st_size)
        with path.open("rb") as raw:
            stream: Any = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw
            text = io.TextIOWrapper(
                stream, encoding="utf-8", errors="backslashreplace", newline="\n"
            )
            while line := text.readline(MAX_LINE):
                number += 1
                if len(line) == MAX_LINE:
                    raise malformed(path, number, f"a line of more than {MAX_LINE >> 20} MiB")
                stripped = line.rstrip("\r\n")
                if stripped:
                    yield number, stripped
                if progress is not None and number % LINES_PER_REPORT == 0:
                    progress(raw.tell() / total)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise malformed(path, number + 1, f"the gzip file is damaged ({problem})") from problem
    except OSError as problem:
        raise unreadable(path, problem) from problem
