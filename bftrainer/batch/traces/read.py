"""The table of trace formats, and reading and writing by format.

The simulator and ``bftrainer trace`` call ``read_trace``. A new format is one module and one entry
of ``FORMATS``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bftrainer.batch.traces import files, lsf, sacct, swf
from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.text import Progress, ReadOptions, TraceError, unreadable


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """A format that can be read, and perhaps written."""

    read: Callable[[Path, ReadOptions, Progress | None], Fragments]
    endings: tuple[str, ...] = ()
    write: Callable[[Path, Fragments], None] | None = None


FORMATS: Mapping[str, TraceFormat] = {
    "npz": TraceFormat(files.read_npz, (".npz",), files.write_npz),
    "csv": TraceFormat(files.read_csv, (".csv", ".csv.gz"), files.write_csv),
    "parquet": TraceFormat(files.read_parquet, (".parquet",), files.write_parquet),
    "swf": TraceFormat(swf.read_swf, (".swf", ".swf.gz")),  # of the Parallel Workloads Archive
    "sacct": TraceFormat(sacct.read_sacct),
    "lsb.acct": TraceFormat(lsf.read_lsb_acct),
    "bhist": TraceFormat(lsf.read_bhist),
}


def read_trace(
    path: Path,
    format: str = "auto",  # noqa: A002 - the word of --format
    *,
    options: ReadOptions | None = None,
    progress: Progress | None = None,
) -> Fragments:
    """Read a trace in any of ``FORMATS``; ``auto`` decides by the name, then by the content.

    Raises:
        TraceError: the file cannot be read, or is not what its format should be.
    """
    name = guess_format(path) if format == "auto" else format
    if name not in FORMATS:
        raise _unknown(f"There is no trace format {name[:40]!r}.")
    if options is not None and options.sinfo is not None and name != "sacct":
        raise TraceError(
            "BFT-4014",
            f"{path.name} is read as {name}, and --sinfo describes the nodes of a log of sacct.",
            "Leave --sinfo out, or give the log of sacct; a file .npz of 'bftrainer trace convert' "
            "keeps what --sinfo told.",
        )
    try:
        return FORMATS[name].read(path, options or ReadOptions(), progress)
    except OSError as problem:
        raise unreadable(path, problem) from problem


def write_trace(path: Path, trace: Fragments) -> None:
    """Write a trace in the format given by the ending of its name.

    Raises:
        TraceError: no format has that ending, or the file cannot be written.
    """
    for trace_format in FORMATS.values():
        if trace_format.write is not None and path.name.endswith(trace_format.endings):
            try:
                return trace_format.write(path, trace)
            except OSError as problem:
                raise unreadable(path, problem) from problem
    raise TraceError(
        "BFT-4003",
        f"The ending of {path.name!r} says no format that can be written.",
        "Let the name end in .npz, .csv, .csv.gz or .parquet.",
    )


def guess_format(path: Path) -> str:
    """Return the format of a file, judged by its name and its first lines."""
    for name, trace_format in FORMATS.items():
        if trace_format.endings and path.name.endswith(trace_format.endings):
            return name
    head = _head(path)
    first = next(filter(str.strip, head.splitlines()), "")
    if "|" in first and "JobID" in first.split("|"):
        return "sacct"
    if first.startswith((files.MAGIC, "node,")):
        return "csv"
    if first.lstrip().startswith(";") or len(first.split()) == swf.FIELDS:
        return "swf"
    if first.startswith('"') and '"JOB_FINISH"' in head:
        return "lsb.acct"
    if "Job <" in head:
        return "bhist"
    raise _unknown(f"What format {path.name} has cannot be told from its name or its first lines.")


def _head(path: Path) -> str:
    try:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as file:
            return file.read(8192).decode("utf-8", errors="replace")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _unknown(cause: str) -> TraceError:
    return TraceError("BFT-4003", cause, f"Name it with --format: {', '.join(FORMATS)}.")
