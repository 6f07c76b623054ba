"""Jobs of a log in the Standard Workload Format (2.2), on a machine of another size. Pure.

Fields: 1 number, 2 submit, 4 run time, 5 processors, 8 processors asked for, 9 time asked for,
12 user. Sizes shrink in proportion; times stay, but that submissions are drawn together or
apart until the machine is asked for as much as wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bftrainer.lab.site.jobs import JobSpec

FIELDS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    submit_s: float
    run_s: float
    processors: float
    limit_s: float
    user: str


def read(text: str, *, n_nodes: int, load: float, span_s: float) -> tuple[JobSpec, ...]:
    """Return the first jobs of a log that fill a span.

    Args:
        text: the log.
        n_nodes: of the machine to play it on.
        load: node-seconds asked for, of all there are.
        span_s: of submissions.

    Raises:
        ValueError: it is no such log, or no job in it ran.
    """
    rows = [row for line in text.splitlines() if (row := _row(line)) is not None]
    if not rows:
        raise ValueError("no job in it ran")
    widest = max(row.processors for row in rows)
    sizes = [max(1, round(0.5 * n_nodes * row.processors / widest)) for row in rows]
    work = sum(n * row.run_s for n, row in zip(sizes, rows, strict=True))
    first_s = min(row.submit_s for row in rows)
    lasts_s = max(1.0, max(row.submit_s for row in rows) - first_s)
    squeeze = work / (load * n_nodes * lasts_s)
    specs = [
        JobSpec(
            number=number,
            submit_s=(row.submit_s - first_s) * squeeze,
            n_nodes=size,
            limit_s=math.ceil(max(row.limit_s, row.run_s) / 60.0) * 60.0,
            run_s=row.run_s,
            user=row.user,
        )
        for number, (size, row) in enumerate(zip(sizes, rows, strict=True), 1)
    ]
    return tuple(s for s in sorted(specs, key=lambda s: s.submit_s) if s.submit_s < span_s)


def _row(line: str) -> _Row | None:
    """Return what a line says; None: a comment, or a job that never ran."""
    cells = line.split()
    if not cells or cells[0].startswith(";"):
        return None
    if len(cells) != FIELDS:
        raise ValueError(f"{len(cells)} fields, not {FIELDS}: not the Standard Workload Format")
    values = [float(cell) for cell in cells]
    processors = max(values[4], values[7])
    if values[3] <= 0 or processors <= 0:
        return None
    return _Row(
        submit_s=values[1],
        run_s=values[3],
        processors=processors,
        limit_s=values[8],
        user=f"u{values[11]:.0f}",
    )
