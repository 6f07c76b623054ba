"""Slurm's accounting: the output of ``sacct --parsable2``, any order of columns.

Text with a header comes in, idle fragments go out. Steps are left out; every run of a
requeued job counts; what still runs keeps its nodes to the end of the file's time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.jobs import JobTable, idle_fragments, neighbours
from bftrainer.batch.traces.text import duration_s, iso_seconds, malformed, read_lines
from bftrainer.model.hostlist import ParseError, expand

Progress = Callable[[float], None]
COMMAND = (
    "sacct --allusers --duplicates --allocations --parsable2 --starttime … --endtime … "
    "--format JobID,Submit,Eligible,Start,End,NNodes,NodeList,State,Partition,Timelimit"
)
MAX_CACHED_LISTS = 100_000
_NEEDED = ("JobID", "Start", "End", "NodeList")
_NEVER = frozenset({"Unknown", "None", ""})
_NO_NODES = frozenset({"None assigned", "None", "(null)", "Unknown", ""})


@dataclass(slots=True, kw_only=True)
class _Reader:
    """The state of the reader."""

    path: Path
    zone: tzinfo
    ignored: frozenset[str]
    table: JobTable
    at: dict[str, int] = field(default_factory=dict)  # column -> position
    seen: set[tuple[str, str, str, str]] = field(default_factory=set)
    lists: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    n_ignored: int = 0


def read_sacct(
    path: Path,
    *,
    zone: tzinfo,
    ignored_partitions: Collection[str] = (),
    progress: Progress | None = None,
) -> Fragments:
    """Read the output of ``COMMAND`` (more columns do no harm).

    Args:
        path: the file.
        zone: of the times in it, where they are not seconds of the epoch.
        ignored_partitions: jobs there (pilots) count as idle time.
        progress: told how much is read, 0 to 1.
    """
    reader = _Reader(
        path=path,
        zone=zone,
        ignored=frozenset(ignored_partitions),
        table=JobTable(path=path),
    )
    for number, line in read_lines(path, progress):
        cells = line.split("|")
        if not reader.at:
            _header(reader, number, cells)
        elif len(cells) != len(reader.at):
            raise malformed(path, number, f"{len(cells)} fields, the header has {len(reader.at)}")
        else:
            _row(reader, number, cells)
    reader.seen.clear()
    reader.table.notes.append("nodes on which no job ran are not in sacct's output")
    if reader.n_ignored:
        names = ", ".join(sorted(reader.ignored))
        reader.table.notes.append(f"{reader.n_ignored} jobs of partition {names} count as idle")
    return idle_fragments(reader.table, progress=progress)


def _header(reader: _Reader, number: int, cells: list[str]) -> None:
    reader.at = {name: i for i, name in enumerate(cells)}
    missing = [name for name in _NEEDED if name not in reader.at]
    if missing or len(reader.at) != len(cells):
        what = f"the header lacks {', '.join(missing)}" if missing else "a column is there twice"
        raise malformed(reader.path, number, what, f"Export with: {COMMAND}.")


def _row(reader: _Reader, number: int, cells: list[str]) -> None:
    def cell(name: str) -> str:
        return cells[reader.at[name]].strip() if name in reader.at else ""

    job_id = cell("JobID")
    if not job_id[:1].isdigit():
        raise malformed(reader.path, number, f"{job_id[:40]!r} is not a job id")
    if "." in job_id:
        return  # a step
    is_ignored = cell("Partition") in reader.ignored - {""}
    key = (job_id, cell("Submit"), cell("Start"), cell("End"))
    if key in reader.seen:
        return  # the same run again, from concatenated files
    reader.seen.add(key)
    try:
        if is_ignored:
            _pass_over(reader, cell)
        else:
            _take(reader, number, cell)
    except (ValueError, OverflowError) as problem:
        raise malformed(reader.path, number, str(problem)) from problem


def _pass_over(reader: _Reader, cell: Callable[[str], str]) -> None:
    """Add a pilot: its time is idle, but its nodes exist."""
    reader.n_ignored += 1
    if cell("NodeList") not in _NO_NODES:
        _ranges(reader, cell("NodeList"))


def _take(reader: _Reader, number: int, cell: Callable[[str], str]) -> None:
    """Add a run of a job: its time in the queue and on nodes."""
    starts, ends = cell("Start"), cell("End")
    start_s = None if starts in _NEVER else iso_seconds(starts, reader.zone)
    end_s = math.inf if ends in _NEVER else iso_seconds(ends, reader.zone, start_s)
    state = cell("State").split(" ")[0]
    nodes = cell("NodeList")
    if start_s is not None and end_s < start_s:
        raise ValueError(f"it ends at {ends}, before its start {starts}")
    if start_s is not None and nodes not in _NO_NODES and end_s > start_s:
        reader.table.add_run(start_s, end_s, _ranges(reader, nodes), number)
    since = cell("Eligible") if cell("Eligible") not in _NEVER else cell("Submit")
    if since in _NEVER or state == "REQUEUED":
        return
    asked = cell("NNodes") or cell("ReqNodes")
    if not asked:
        return
    if not asked.isdecimal() or len(asked) > 9:
        raise ValueError(f"NNodes is {asked[:40]!r}")
    limit_s = duration_s(cell("Timelimit"))
    until_s = end_s if start_s is None else start_s
    from_s = iso_seconds(since, reader.zone)
    reader.table.add_wait(from_s, until_s, int(asked), limit_s, number)


def _ranges(reader: _Reader, nodes: str) -> list[tuple[int, int]]:
    ranges = reader.lists.get(nodes)
    if ranges is None:
        try:
            names = expand(nodes)
        except ParseError as problem:
            raise ValueError(str(problem)) from problem
        ranges = neighbours(reader.table.index(name) for name in names)
        if len(reader.lists) >= MAX_CACHED_LISTS:
            reader.lists.clear()
        reader.lists[nodes] = ranges
    return ranges
