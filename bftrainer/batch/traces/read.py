"""The table of trace formats, and reading and writing by format.

The simulator and ``bftrainer trace`` call ``read_trace``. A new format is one module and one entry
of ``FORMATS``.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bftrainer.batch.traces import files, lsf, sacct, swf
from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.text import TraceError, time_zone, unreadable

Progress = Callable[[float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Facts that some formats do not contain."""

    time_zone: str = "UTC"  # of local times: sacct and bhist
    year: int | None = None  # of times without one: bhist; None: this year
    ignored: tuple[str, ...] = ()  # partitions or queues whose jobs (pilots) count as idle


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """A format that can be read, and perhaps written."""

    what: str  # one line for help and docs
    read: Callable[[Path, ReadOptions, Progress | None], Fragments]
    write: Callable[[Path, Fragments], None] | None = None
    endings: tuple[str, ...] = ()


def _bhist(path: Path, options: ReadOptions, progress: Progress | None) -> Fragments:
    return lsf.read_bhist(
        path,
        zone=time_zone(options.time_zone),
        year=options.year or datetime.now(UTC).year,
        ignored_queues=options.ignored,
        progress=progress,
    )


def _sacct(path: Path, options: ReadOptions, progress: Progress | None) -> Fragments:
    return sacct.read_sacct(
        path,
        zone=time_zone(options.time_zone),
        ignored_partitions=options.ignored,
        progress=progress,
    )


FORMATS: Mapping[str, TraceFormat] = {
    "npz": TraceFormat(
        what="fragments as numpy arrays",
        read=lambda path, _, __: files.read_npz(path),
        write=files.write_npz,
        endings=(".npz",),
    ),
    "csv": TraceFormat(
        what="fragments as text, also gzipped",
        read=lambda path, _, progress: files.read_csv(path, progress),
        write=files.write_csv,
        endings=(".csv", ".csv.gz"),
    ),
    "parquet": TraceFormat(
        what="fragments as a parquet table (needs pyarrow)",
        read=lambda path, _, __: files.read_parquet(path),
        write=files.write_parquet,
        endings=(".parquet",),
    ),
    "swf": TraceFormat(
        what="Standard Workload Format of the Parallel Workloads Archive, also gzipped",
        read=lambda path, _, progress: swf.read_swf(path, progress),
        endings=(".swf", ".swf.gz"),
    ),
    "sacct": TraceFormat(what="output of Slurm's sacct --parsable2", read=_sacct),
    "lsb.acct": TraceFormat(
        what="LSF's accounting file lsb.acct",
        read=lambda path, options, progress: lsf.read_lsb_acct(
            path, ignored_queues=options.ignored, progress=progress
        ),
    ),
    "bhist": TraceFormat(what="output of LSF's bhist -a -UF", read=_bhist),
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
    return FORMATS[name].read(path, options or ReadOptions(), progress)


def write_trace(path: Path, trace: Fragments) -> None:
    """Write a trace in the format given by the ending of its name.

    Raises:
        TraceError: no format has that ending, or the file cannot be written.
    """
    for known in FORMATS.values():
        if known.write is not None and path.name.endswith(known.endings):
            known.write(path, trace)
            return
    raise TraceError(
        "BFT-4003",
        f"The ending of {path.name!r} says no format that can be written.",
        "Let the name end in .npz, .csv, .csv.gz or .parquet.",
    )


def guess_format(path: Path) -> str:
    """Return the format of a file, judged by its name and its first lines."""
    for name, known in FORMATS.items():
        if known.endings and path.name.endswith(known.endings):
            return name
    head = _head(path)
    first = next((line for line in head.splitlines() if line.strip()), "")
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
        if path.suffix == ".gz":
            with gzip.open(path, "rb") as packed:
                return packed.read(8192).decode("utf-8", errors="replace")
        with path.open("rb") as file:
            return file.read(8192).decode("utf-8", errors="replace")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return ""
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _unknown(cause: str) -> TraceError:
    return TraceError("BFT-4003", cause, f"Name it with --format: {', '.join(FORMATS)}.")
