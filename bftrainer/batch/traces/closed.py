"""When nodes were closed, down or drained: the output of ``sacctmgr show event``.

``sacct`` knows jobs only, so that a node that is down looks idle. slurmdbd keeps an event for each
time in which a node was DOWN or DRAIN (sacctmgr(1), "LIST/SHOW EVENT FORMAT OPTIONS", Slurm 20.11
to 26.05); rows without a node are of the whole cluster, such as its registration, and left out.
"""

from __future__ import annotations

import math
from pathlib import Path

from bftrainer.batch.traces.jobs import JobTable
from bftrainer.batch.traces.text import ReadOptions, iso_seconds, malformed, read_lines, time_zone
from bftrainer.model.hostlist import expand

COMMAND = (
    "SLURM_TIME_FORMAT=%s sacctmgr --parsable2 show event event=node start=2024-05-01 "
    "end=2024-05-08 format=NodeName,Start,End,State"
)
# ``Start`` and ``End`` are printed with these headings.
_NODE, _START, _END = "NodeName", "TimeStart", "TimeEnd"
_HEADINGS = f"(which prints Start and End under {_START} and {_END})"
_NOT_YET = frozenset({"Unknown", "None", ""})


def add_closed(table: JobTable, path: Path, options: ReadOptions) -> None:
    """Add the times in which nodes were closed.

    Raises:
        TraceError: BFT-4001, this is not that output.
    """
    header: list[str] = []
    zone = time_zone(options.time_zone)
    for number, line in read_lines(path):
        cells = list(map(str.strip, line.split("|")))
        if not header:
            header = cells
            if missing := [name for name in (_NODE, _START, _END) if name not in header]:
                cause = f"the header lacks {', '.join(missing)}"
                raise malformed(path, number, cause, f"Export with: {COMMAND} {_HEADINGS}")
            continue
        if len(cells) != len(header):
            raise malformed(path, number, f"{len(cells)} fields, the header has {len(header)}")
        row = dict(zip(header, cells, strict=True))
        nodes, end_s = list[int](), math.inf
        try:
            if row[_NODE]:
                nodes = list(map(table.index, expand(row[_NODE])))
            start_s = iso_seconds(row[_START], zone)
            if row[_END] not in _NOT_YET:
                end_s = iso_seconds(row[_END], zone, start_s)
        except (ValueError, OverflowError) as problem:
            raise malformed(path, number, str(problem)) from problem
        if nodes and end_s > start_s:
            table.add_closed(start_s, end_s, nodes, number)
