"""Slurm's accounting: the output of ``sacct --parsable2``, any order of columns.

Text with a header comes in, idle fragments go out. Steps are left out; every run of a
requeued job counts; what still runs keeps its nodes to the end of the file's time.

``sacct`` lists the jobs that were eligible before ``--endtime`` and had not ended before
``--starttime`` (sacct(1) and ``as_mysql_jobacct_process.c`` of Slurm 20.11 to 26.05). In the plain
form they have their true times: before the first end in the file jobs are missing, and after the
last time at which one became eligible, too. With ``--truncate`` starts and ends are cut to the
window, nothing is ``Unknown``, and a job that started after the window ends before its start.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from bftrainer.batch.traces.closed import add_closed
from bftrainer.batch.traces.fragments import HOUR_S, Fragments
from bftrainer.batch.traces.jobs import JobTable, idle_fragments, need_runs, neighbours
from bftrainer.batch.traces.machine import add_nodes, with_machine
from bftrainer.batch.traces.sinfo import MOST_GPUS, read_sinfo
from bftrainer.batch.traces.text import (
    NO_ZONE,
    Progress,
    ReadOptions,
    duration_s,
    iso_instants,
    iso_seconds,
    malformed,
    read_lines,
    time_zone,
)
from bftrainer.batch.traces.window import Coverage, RecordedTimes
from bftrainer.model.generic_resources import PARTS, by_kind, items_of
from bftrainer.model.hostlist import ParseError, expand

COMMAND = (
    "SLURM_TIME_FORMAT=%s sacct --allusers --duplicates --allocations --parsable2 --truncate "
    "--starttime 2024-05-01 --endtime 2024-05-08 --format "
    "JobID,Submit,Eligible,Start,End,ElapsedRaw,Suspended,NNodes,NodeList,State,Partition,Timelimit,"
    "AllocTRES"
)
MAX_CACHED_LISTS = 100_000
CLOCK_CHANGE_S = 3600.0
_RESOURCES = ("AllocTRES", "ReqTRES")  # the first that says something tells a run's GPUs
_NEEDED = ("JobID", "Start", "End", "NodeList")
_NEVER = frozenset({"Unknown", "None", ""})
_NO_NODES = frozenset({"None assigned", "None", "(null)", "Unknown", ""})
_LIVE = frozenset({"RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED"})
# Ends of a run after which Slurm may start the job again (JobRequeue, PreemptMode=REQUEUE).
_REQUEUEABLE = frozenset({"PREEMPTED", "NODE_FAIL", "REQUEUED", "BOOT_FAIL", "REQUEUE_HOLD"})
Row = Mapping[str, str]


def read_sacct(path: Path, options: ReadOptions, progress: Progress | None) -> Fragments:
    """Read the output of ``COMMAND`` (more columns do no harm)."""
    reader = RunReader(path, options)
    for number, row in read_rows(path, progress):
        reader.take_row(row, number)
    coverage = reader.coverage()
    if options.closed is not None:
        add_closed(reader.table, options.closed, options)
    if options.sinfo is None:
        return idle_fragments(reader.table, coverage, options, progress=progress)
    nodes = read_sinfo(options.sinfo)
    add_nodes(reader.table, nodes, options.sinfo)
    trace = idle_fragments(reader.table, coverage, options, progress=progress)
    return with_machine(trace, reader.table, nodes, options)


def read_rows(path: Path, progress: Progress | None) -> Iterator[tuple[int, Row]]:
    """Yield the number of each line behind the header, and its cells by column.

    Raises:
        TraceError: BFT-4001, a column is missing, or a line has another number of cells.
    """
    header = list[str]()
    for number, line in read_lines(path, progress):
        cells = line.split("|")
        if not header:
            header = cells
            missing = [name for name in _NEEDED if name not in header]
            if missing or len({*header}) != len(header):
                cause = "a column is there twice"
                if missing:
                    cause = f"the header lacks {', '.join(missing)}"
                raise malformed(path, number, cause, f"Export with: {COMMAND}")
        elif len(cells) != len(header):
            raise malformed(path, number, f"{len(cells)} fields, the header has {len(header)}")
        else:
            yield number, dict(zip(header, map(str.strip, cells), strict=True))


@dataclass(frozen=True, slots=True)
class RunTimes:
    """When a job could start, started and ended, in seconds; infinite: not yet."""

    eligible_s: float | None
    start_s: float | None
    end_s: float


@dataclass(slots=True)
class _Form:
    """What tells whether the file was made with ``--truncate``."""

    has_unknown: bool = False  # never with it
    n_live_ended: int = 0  # rows that live and have an end: only with it
    late: list[tuple[float, int, str]] = field(default_factory=list)  # end before start
    n_ends: Counter[float] = field(default_factory=Counter)
    first_start_s: float = math.inf
    first_submits: set[str] = field(default_factory=set)
    last_end_s: float = -math.inf
    last_starts: set[str] = field(default_factory=set)

    def ran(self, row: Row, start_s: float, end_s: float) -> None:
        """Note a run: at the edges of a window many begin, or end, in the same second."""
        if start_s < self.first_start_s:
            self.first_start_s, self.first_submits = start_s, set()
        if start_s == self.first_start_s:
            self.first_submits.add(row.get("Submit", ""))
        if self.last_end_s < end_s < math.inf:
            self.last_end_s, self.last_starts = end_s, set()
        if end_s == self.last_end_s:
            self.last_starts.add(row["Start"])

    def is_truncated(self) -> bool:
        """Return whether it was; in doubt not: for the other form less of the time is taken."""
        if self.has_unknown:
            return False
        if self.n_live_ended or self.late:
            return True
        return len(self.first_submits) > 1 and len(self.last_starts) > 1


class RunReader:
    """Collects the runs and waits of rows."""

    def __init__(self, path: Path, options: ReadOptions) -> None:
        self.table, self._seen, self._form = JobTable(path=path), RecordedTimes(), _Form()
        self._zone, self._ignored = time_zone(options.time_zone), {*options.ignored} - {""}
        self._has_zone = options.time_zone is not None
        self._has_machine = options.sinfo is not None
        self._rows: set[tuple[str, ...]] = set()
        self._lists: dict[str, list[tuple[int, int]]] = {}
        self._n_rows_of: Counter[str] = Counter()  # job id -> different runs
        self._requeueable: set[str] = set()
        self._suspended_s = 0.0  # node-seconds
        self._n_local = self._n_twice = self._n_ignored = self._n_jumps = 0

    def take_row(self, row: Row, number: int) -> RunTimes | None:
        """Take a row and return its times; None: it is a step, or was there before.

        Raises:
            TraceError: BFT-4001, a cell cannot be read.
        """
        self.table.tells_gpus = not row.keys().isdisjoint(_RESOURCES)
        try:
            return self._take(row, number)
        except (ValueError, OverflowError) as problem:
            raise malformed(self.table.path, number, str(problem)) from problem

    def _take(self, row: Row, number: int) -> RunTimes | None:
        job_id = row["JobID"]
        if not job_id[:1].isdigit():
            raise ValueError(f"{job_id[:40]!r} is not a job id")
        key = (job_id, row.get("Submit", ""), row["Start"], row["End"])
        if "." in job_id or key in self._rows:
            return None  # a step, or the same run again, from concatenated files
        self._rows.add(key)
        times = self._times(row)
        self._note(row, times, number)
        nodes = row["NodeList"]
        is_ignored = row.get("Partition", "") in self._ignored
        if is_ignored:  # its time is idle, but its nodes exist
            self._n_ignored += 1
            if nodes not in _NO_NODES:
                self._ranges(nodes)
        start_s, end_s = times.start_s, times.end_s
        has_run = start_s is not None and nodes not in _NO_NODES
        if start_s is not None and has_run and end_s > start_s:
            self._seen.ran(start_s, end_s)
            self._form.ran(row, start_s, end_s)
            if not is_ignored:
                partition = row.get("Partition", "")
                ranges = self._ranges(nodes)
                gpus = _gpus_per_node(row, sum(count for _, count in ranges))
                self.table.add_run(start_s, end_s, ranges, number, partition=partition, gpus=gpus)
                self._note_suspended(row, nodes)
        if not is_ignored:
            self._wait(row, times, number)
        return times

    def coverage(self) -> Coverage:
        """Return for which time the rows are complete; complete the notes.

        Raises:
            TraceError: BFT-4001, a job ends before its start; BFT-4008, none ran.
        """
        edges = {end_s for end_s, count in self._form.n_ends.items() if count > 1}
        if not self._form.has_unknown:
            edges.add(self._form.last_end_s)
        for end_s, number, cause in self._form.late:
            if end_s not in edges:  # no edge of a window, at which sacct cuts
                next_step = f"Name the cluster's --time-zone, or export with: {COMMAND}"
                raise malformed(self.table.path, number, cause, next_step)
        need_runs(self.table)
        self._say()
        times = self._seen
        if self._form.is_truncated():
            edges_s = times.first_start_s, times.last_end_s
            return Coverage(
                recorded_s=edges_s, complete_s=edges_s, why="sacct cut its jobs to its window"
            )
        last_s = times.last_eligible_s
        if last_s == -math.inf:
            last_s = times.last_start_s
        return Coverage(
            recorded_s=times.recorded_s(),
            complete_s=(times.first_end_s, last_s),
            why="nothing in the file shows that sacct cut its jobs to its window (--truncate), and "
            "otherwise it lacks jobs that ended before --starttime or became eligible after "
            "--endtime. --start and --end, the times of the export, take all of it",
        )

    def _times(self, row: Row) -> RunTimes:
        """Read the times; of an hour that a clock change repeats those that fit together."""
        starts, ends, eligible = row["Start"], row["End"], row.get("Eligible", "")
        if eligible in _NEVER:
            eligible = row.get("Submit", "")
        eligible_s = start_s = None
        if eligible not in _NEVER:
            eligible_s = self._seconds(eligible, None)
        if starts not in _NEVER:
            start_s = self._seconds(starts, eligible_s)
        if ends in _NEVER:
            return RunTimes(eligible_s, start_s, math.inf)
        end_s = self._seconds(ends, start_s if start_s is not None else eligible_s)
        elapsed = row.get("ElapsedRaw", "")
        if start_s is None or not elapsed.isdecimal():
            return RunTimes(eligible_s, start_s, end_s)
        took_s = float(elapsed) + (duration_s(row.get("Suspended", "") or "0") or 0.0)
        instants = iso_instants(starts, self._zone), iso_instants(ends, self._zone)
        fitting = [
            (begin_s, at_s) for begin_s, at_s in product(*instants) if at_s - begin_s == took_s
        ]
        if (start_s, end_s) not in fitting and fitting:
            start_s, end_s = fitting[0]
        self._n_jumps += not fitting and abs(end_s - start_s - took_s) == CLOCK_CHANGE_S
        return RunTimes(eligible_s, start_s, end_s)

    def n_nodes(self, nodes: str) -> int:
        """Return how many nodes a list has."""
        return sum(count for _, count in self._ranges(nodes))

    def _seconds(self, text: str, not_before_s: float | None) -> float:
        self._n_local += not text.isdecimal()
        self._n_twice += len(iso_instants(text, self._zone)) > 1
        return iso_seconds(text, self._zone, not_before_s)

    def _note(self, row: Row, times: RunTimes, number: int) -> None:
        """Note what the row says of the file, whether its job ran or not."""
        state = row.get("State", "").split(" ")[0]
        self._form.has_unknown |= row["Start"] in _NEVER or row["End"] in _NEVER
        self._form.n_live_ended += state in _LIVE and row["End"] not in _NEVER
        self._form.n_ends[times.end_s] += 1
        if times.start_s is not None and times.end_s < times.start_s:
            cause = f"it ends at {row['End']}, before its start {row['Start']}"
            self._form.late.append((times.end_s, number, cause))
        if times.eligible_s is not None:
            self._seen.eligible(times.eligible_s)
        self._seen.ended(times.end_s)
        self._n_rows_of[row["JobID"]] += 1
        if state in _REQUEUEABLE:
            self._requeueable.add(row["JobID"])

    def _note_suspended(self, row: Row, nodes: str) -> None:
        suspended_s = duration_s(row.get("Suspended", "") or "0") or 0.0
        self._suspended_s += suspended_s * self.n_nodes(nodes)

    def _say(self) -> None:
        """Add what the figures assume, and what makes them doubtful."""
        notes, warnings = self.table.notes, self.table.warnings
        if not self._has_machine:
            notes.append("nodes on which no job ran are not in sacct's output")
        if self._n_ignored:
            names = ", ".join(sorted(self._ignored))
            notes.append(f"{self._n_ignored} jobs of partition {names} count as idle")
        if self._suspended_s:
            hours = self._suspended_s / HOUR_S
            notes.append(f"{hours:,.1f} node-hours in which jobs were suspended count as used")
        if self._requeueable and max(self._n_rows_of.values()) == 1:
            warnings.append(
                f"no job is listed twice, though {len(self._requeueable)} were preempted or lost "
                "a node: if they were requeued, and the export lacks --duplicates, their earlier "
                "runs look idle"
            )
        if self._n_local and not self._has_zone:
            warnings.append(NO_ZONE)
        if self._n_twice:
            notes.append(
                f"{self._n_twice} times are in an hour that a clock change repeats; where nothing "
                "in the row decides, the first was taken"
            )
        if self._n_jumps:
            warnings.append(
                f"{self._n_jumps} jobs ran an hour more or less than their times say: the clock "
                "changed, and --time-zone does not name the cluster's zone"
            )

    def _wait(self, row: Row, times: RunTimes, number: int) -> None:
        """Add its time in the queue."""
        size = row.get("NNodes") or row.get("ReqNodes", "")
        if times.eligible_s is None or row.get("State", "").startswith("REQUEUED") or not size:
            return
        if not size.isdecimal() or len(size) > 9:
            raise ValueError(f"NNodes is {size[:40]!r}")
        limit_s = duration_s(row.get("Timelimit", ""))
        until_s = times.end_s if times.start_s is None else times.start_s
        self.table.add_wait(times.eligible_s, until_s, int(size), limit_s, number)

    def _ranges(self, nodes: str) -> list[tuple[int, int]]:
        if nodes not in self._lists:
            if len(self._lists) >= MAX_CACHED_LISTS:
                self._lists.clear()
            self._lists[nodes] = neighbours(map(self.table.index, expand(nodes)))
        return self._lists[nodes]


def _gpus_per_node(row: Row, n_nodes: int) -> dict[str, int] | None:
    """Return the GPUs of a run on each of its nodes, by type, "" where that is not told.

    sacct adds up those of all nodes. The mean is rounded up. A part of a GPU (shard, mps) counts
    as a GPU of each node.

    Returns:
        None: the row does not tell.
    """
    resources = next(filter(None, (row.get(name, "") for name in _RESOURCES)), "")
    try:
        items = items_of(resources)
    except ParseError:
        return None
    if not resources or not n_nodes:
        return None
    counts = by_kind(items)
    if any(item.count for item in items if item.name in PARTS):
        counts[""] = counts.get("", 0) + n_nodes
    return {kind: min(-(-count // n_nodes), MOST_GPUS) for kind, count in counts.items() if count}
