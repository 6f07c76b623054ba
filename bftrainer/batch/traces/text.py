"""Reads logs: lines, times as batch systems print them, and the errors of files.

Codes: 4001 malformed file (with its line), 4002 file cannot be read or written, 4003
format unknown, 4004 optional package missing, 4005 selection outside the trace, 4006
not a pandas frame, 4007 contradictory fragments, 4008 no jobs or nodes,
4009 parameters of the generator, 4010 malformed workload, 4011 unknown workload, 4012 malformed
list of nodes, 4013 list of another cluster's nodes, 4014 list of nodes for a log that has none.

Local times need the time zone of the cluster; seconds of the epoch do not. Used by the
readers of sacct and LSF output.

``read_lines`` reports how much of the file is read; any fault of the bytes becomes a ``TraceError``
with the line.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from bftrainer.model.errors import ExitCode, UsageError

Progress = Callable[[float], None]  # told how much is read, 0 to 1
NO_ZONE = (
    "times without a zone were read as UTC: name the cluster's zone with --time-zone (sacct: or "
    "export with SLURM_TIME_FORMAT=%s)"
)
_EPOCH = re.compile(r"[0-9]{1,12}")
_DURATION = re.compile(r"(?:([0-9]{1,6})-)?([0-9]{1,7})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?")
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_LSF = re.compile(
    r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2})(?: ([0-9]{4}))?"
)
_EARLIEST = datetime(1971, 1, 1, tzinfo=UTC)
MAX_LINE = 16 << 20  # characters; a job on every node of the largest machine stays below
LINES_PER_REPORT = 10_000


class TraceError(UsageError):
    """A trace or workload, or a part of one, cannot be used."""

    def __init__(self, code: str, cause: str, next_step: str) -> None:
        super().__init__(code, cause, next_step, exit_code=ExitCode.VALIDATION_FAILED)


def malformed(path: Path, line: int | None, what: str, next_step: str = "") -> TraceError:
    """Return the error of a file that violates its format."""
    where = path.name if line is None else f"{path.name}:{line}"
    return TraceError(
        "BFT-4001",
        f"{where}: {what}.",
        next_step or "Correct the file, or name its format with --format.",
    )


def unreadable(path: Path, problem: OSError) -> TraceError:
    """Return the error of a file that cannot be read or written."""
    return TraceError(
        "BFT-4002",
        f"{path}: {problem.strerror or problem}.",
        "Check the name and the permissions of the file.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Facts that some formats do not contain."""

    time_zone: str | None = None  # of local times: sacct and bhist; None: UTC, which is said
    start_s: float | None = None  # of the time for which a log lists all jobs; None: see ``window``
    end_s: float | None = None
    closed: Path | None = None  # output of sacctmgr show event: when nodes were down or drained
    sinfo: Path | None = None  # output of sinfo: nodes, their partitions and GPUs (sacct)
    year: int | None = None  # of times without one: bhist; None: this year
    ignored: tuple[str, ...] = ()  # partitions or queues whose jobs (pilots) count as idle


def clock(at_s: float) -> str:
    """Return an instant for a sentence, in UTC with the seconds of the epoch; times may be odd."""
    try:
        return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ} ({at_s:.0f})"
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.0f} s"


def time_zone(name: str | None) -> tzinfo:
    """Return the zone with that name of the tz database; None: UTC.

    Raises:
        TraceError: BFT-4005, there is no such zone here.
    """
    try:
        if name in {None, "UTC"}:
            return UTC
        return ZoneInfo(str(name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise TraceError(
            "BFT-4005",
            f"There is not a time zone {str(name)[:60]!r} on this machine.",
            "Name one like Europe/Berlin, or export with SLURM_TIME_FORMAT=%s.",
        ) from None


def iso_instants(text: str, zone: tzinfo) -> tuple[float, ...]:
    """Return the seconds of ``2024-05-01T10:00:00``, with or without offset, or of ``%s``.

    A local time in an hour that a clock change repeats gives both instants.

    Raises:
        ValueError: this is no such time.
    """
    if _EPOCH.fullmatch(text):
        return (float(text),)
    if len(text) < 16 or text[4] != "-" or text[10] not in "T ":
        raise ValueError(f"{text[:40]!r} is not a time")
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        return _local(at, zone)
    return (at.timestamp(),)


def iso_seconds(text: str, zone: tzinfo, not_before_s: float | None = None) -> float:
    """Return one of ``iso_instants``: the first, unless that would be before ``not_before_s``.

    A job cannot end before it starts.

    Raises:
        ValueError: this is no such time.
    """
    return _first_after(not_before_s, iso_instants(text, zone))


def lsf_seconds(text: str, zone: tzinfo, year: int, not_before_s: float | None = None) -> float:
    """Return the seconds of ``Mon May  6 10:00:00``; LSF prints the year only on request.

    Raises:
        ValueError: this is no such time.
    """
    match = _LSF.fullmatch(text)
    if match is None or match[1] not in _MONTHS:
        raise ValueError(f"{text[:40]!r} is not a time")
    month = _MONTHS.index(match[1]) + 1
    day, hour, minute, second = map(int, match.groups()[1:5])
    at = datetime(int(match[6] or year), month, day, hour, minute, second)  # noqa: DTZ001 - below
    return _first_after(not_before_s, _local(at, zone))


def _local(at: datetime, zone: tzinfo) -> tuple[float, ...]:
    at = at.replace(tzinfo=zone)
    try:
        if at < _EARLIEST or at.year > 9000:
            raise ValueError(f"the year {at.year} is not a plausible year of a job")
        first_s, second_s = at.timestamp(), at.replace(fold=1).timestamp()
    except OverflowError as problem:
        raise ValueError(str(problem)) from problem
    if second_s <= first_s:
        return (first_s,)
    return (first_s, second_s)


def _first_after(not_before_s: float | None, instants: tuple[float, ...]) -> float:
    if not_before_s is not None and instants[0] < not_before_s <= instants[-1]:
        return instants[-1]
    return instants[0]


def duration_s(text: str) -> float | None:
    """Return the seconds of ``1-02:03:04``, ``10:00`` (minutes) or ``90`` (minutes).

    None stands for words: no limit, or one that the source does not say.

    Raises:
        ValueError: this is not a duration.
    """
    if not text or text.lower() in {"unlimited", "partition_limit", "invalid", "n/a", "none"}:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration")
    days, *parts = (int(part or 0) for part in match.groups())
    if match[1] is None and match[4] is None:  # M or M:S, not D-H, D-H:M, D-H:M:S or H:M:S
        parts = [0, *parts[:2]]
    hours, minutes, seconds = parts
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds).total_seconds()


def read_lines(
    path: Path, progress: Progress | None = None, *, most: int = MAX_LINE, is_strict: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield number (from 1) and text of each line that is not empty.

    Bytes that are no UTF-8 are escaped, because names and comments of jobs may be in any encoding,
    or refused (``is_strict``). Lines of ``most`` characters are refused.
    """
    number, errors = 0, "strict" if is_strict else "backslashreplace"
    try:
        total = max(1, path.stat().st_size)
        with path.open("rb") as raw:
            stream: Any = raw
            if path.suffix == ".gz":
                stream = gzip.GzipFile(fileobj=raw)
            text = io.TextIOWrapper(stream, encoding="utf-8", errors=errors, newline="\n")
            while line := text.readline(most):
                number += 1
                if len(line) == most:
                    raise malformed(path, number, f"a line of more than {most >> 20} MiB")
                if stripped := line.rstrip("\r\n"):
                    yield number, stripped
                if progress is not None and number % LINES_PER_REPORT == 0:
                    progress(raw.tell() / total)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise malformed(path, number + 1, f"the gzip file is damaged ({problem})") from problem
    except UnicodeDecodeError as problem:
        raise malformed(path, number + 1, f"it is not a text ({problem})") from problem
