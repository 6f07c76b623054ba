"""Slurm's accounting: the output of ``sacct --parsable2``, any order of columns.

Text with a header comes in, idle fragments go out. Steps are left out; every run of a
requeued job counts; what still runs keeps its nodes to the end of the file's time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from bftrainer.batch.traces.fragments import Fragments
from bftrainer.batch.traces.jobs import JobTable, idle_fragments, neighbours
from bftrainer.batch.traces.text import (
    Progress,
    ReadOptions,
    duration_s,
    iso_seconds,
    malformed,
    read_lines,
    time_zone,
)
from bftrainer.model.hostlist import expand

COMMAND = (
    "sacct --allusers --duplicates --allocations --parsable2 --starttime … --endtime … "
    "--format JobID,Submit,Eligible,Start,End,NNodes,NodeList,State,Partition,Timelimit"
)
MAX_CACHED_LISTS = 100_000
_NEEDED = ("JobID", "Start", "End", "NodeList")
_NEVER = frozenset({"Unknown", "None", ""})
_NO_NODES = frozenset({"None assigned", "None", "(null)", "Unknown", ""})
Row = Mapping[str, str]


def read_sacct(path: Path, options: ReadOptions, progress: Progress | None) -> Fragments:
    """Read the output of ``COMMAND`` (more columns do no harm)."""
    reader, header = _Reader(path, options), list[str]()
    for number, line in read_lines(path, progress):
        cells = line.split("|")
        if not header:
            header = cells
            missing = [name for name in _NEEDED if name not in header]
            if missing or len({*header}) != len(header):
                what = f"the header lacks {', '.join(missing)}"
                what = what if missing else "a column is there twice"
                raise malformed(path, number, what, f"Export with: {COMMAND}.")
        elif len(cells) != len(header):
            raise malformed(path, number, f"{len(cells)} fields, the header has {len(header)}")
        else:
            row = dict(zip(header, map(str.strip, cells), strict=True))
            try:
                reader.take(row, number)
            except (ValueError, OverflowError) as problem:
                raise malformed(path, number, str(problem)) from problem
    reader.table.notes.append("nodes on which no job ran are not in sacct's output")
    if reader.n_ignored:
        names = ", ".join(sorted(options.ignored))
        reader.table.notes.append(f"{reader.n_ignored} jobs of partition {names} count as idle")
    return idle_fragments(reader.table, progress=progress)


class _Reader:
    """Collects the runs and waits of rows."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.table, self.n_ignored = JobTable(path=path), 0
        self._zone, self._ignored = time_zone(options.time_zone), {*options.ignored} - {""}
        self._seen: set[tuple[str, ...]] = set()
        self._lists: dict[str, list[tuple[int, int]]] = {}

    def take(self, row: Row, number: int) -> None:
        job_id = row["JobID"]
        if not job_id[:1].isdigit():
            raise ValueError(f"{job_id[:40]!r} is not a job id")
        key = (job_id, row.get("Submit", ""), row["Start"], row["End"])
        if "." in job_id or key in self._seen:
            return  # a step, or the same run again, from concatenated files
        self._seen.add(key)
        nodes = row["NodeList"]
        if row.get("Partition", "") in self._ignored:  # its time is idle, but its nodes exist
            self.n_ignored += 1
            if nodes not in _NO_NODES:
                self._ranges(nodes)
            return
        starts, ends = row["Start"], row["End"]
        start_s = None if starts in _NEVER else iso_seconds(starts, self._zone)
        end_s = math.inf if ends in _NEVER else iso_seconds(ends, self._zone, start_s)
        if start_s is not None and end_s < start_s:
            raise ValueError(f"it ends at {ends}, before its start {starts}")
        if start_s is not None and nodes not in _NO_NODES and end_s > start_s:
            self.table.add_run(start_s, end_s, self._ranges(nodes), number)
        self._wait(row, end_s if start_s is None else start_s, number)

    def _wait(self, row: Row, until_s: float, number: int) -> None:
        """Add its time in the queue."""
        eligible, asked = row.get("Eligible", ""), row.get("NNodes") or row.get("ReqNodes", "")
        since = row.get("Submit", "") if eligible in _NEVER else eligible
        if since in _NEVER or row.get("State", "").startswith("REQUEUED") or not asked:
            return
        if not asked.isdecimal() or len(asked) > 9:
            raise ValueError(f"NNodes is {asked[:40]!r}")
        limit_s = duration_s(row.get("Timelimit", ""))
        from_s = iso_seconds(since, self._zone)
        self.table.add_wait(from_s, until_s, int(asked), limit_s, number)

    def _ranges(self, nodes: str) -> list[tuple[int, int]]:
        if nodes not in self._lists:
            if len(self._lists) >= MAX_CACHED_LISTS:
                self._lists.clear()
            self._lists[nodes] = neighbours(map(self.table.index, expand(nodes)))
        return self._lists[nodes]
