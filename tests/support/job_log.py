"""A made-up cluster's jobs, second by second, and the logs that batch systems write of them.

The truth is a table of nodes and seconds in which each job marks its cells; nothing of the readers
is used. The writers follow the sources of ``sacct`` (``as_mysql_jobacct_process.c`` of Slurm 20.11
to 26.05), lsb.acct(5) of LSF 10.1 and the Standard Workload Format 2.2.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

DAY_S = 86400
BETWEEN_S = 40_000  # submissions on one node, on average; a third of the node-time stays idle


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job; all times are whole seconds of the epoch."""

    job_id: str
    submit_s: int
    start_s: int
    end_s: int
    nodes: tuple[int, ...]
    limit_s: int
    state: str = "COMPLETED"
    suspended_s: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The runs of a cluster, from long before to long after the time that is exported."""

    runs: tuple[Run, ...]
    n_nodes: int
    begin_s: int  # of the time that is exported
    end_s: int
    closed: tuple[tuple[int, int, int], ...] = ()  # node, start, end: down or drained

    def idle_node_s(self, begin_s: float, end_s: float) -> int:
        """Return the node-seconds without a job on open nodes, counted cell by cell."""
        runs = [(run.nodes, run.start_s, run.end_s) for run in self.runs]
        closed = [((node,), start_s, end_s) for node, start_s, end_s in self.closed]
        return int((~self._cells(begin_s, end_s, [*runs, *closed])).sum())

    def used_node_s(self, begin_s: float, end_s: float) -> int:
        """Return the node-seconds with a job, counted cell by cell."""
        runs = [(run.nodes, run.start_s, run.end_s) for run in self.runs]
        return int(self._cells(begin_s, end_s, runs).sum())

    def _cells(
        self, begin_s: float, end_s: float, taken: Sequence[tuple[tuple[int, ...], int, int]]
    ) -> NDArray[np.bool_]:
        first, last = int(begin_s), int(end_s)
        is_taken = np.zeros((self.n_nodes, last - first), dtype=bool)
        for nodes, start_s, stop_s in taken:
            low, high = max(start_s, first) - first, min(stop_s, last) - first
            if low < high:
                is_taken[list(nodes), low:high] = True
        return is_taken


def made_site(seed: int, begin_s: int, days: int = 7, n_nodes: int = 24) -> Site:
    """Return a cluster that has been busy for a week before, first come first served."""
    chance = random.Random(seed)  # noqa: S311
    free_at = [begin_s - 7 * DAY_S] * n_nodes
    runs: list[Run] = []
    number, submit_s = 1000, begin_s - 7 * DAY_S
    while submit_s < begin_s + (days + 2) * DAY_S:
        number += 1
        submit_s += int(chance.expovariate(n_nodes / BETWEEN_S))
        limit_s = 60 * chance.choices([10, 60, 240, 1440, 4320], [30, 30, 30, 8, 2])[0]
        took_s = min(limit_s, 1 + int(chance.lognormvariate(-1, 1) * limit_s))
        nodes = tuple(
            sorted(
                sorted(range(n_nodes), key=free_at.__getitem__)[: chance.choice([1, 1, 2, 4, 8])]
            )
        )
        start_s = max(submit_s, *(free_at[node] for node in nodes)) + chance.randint(0, 40)
        run = Run(
            job_id=chance.choice([f"{number}", f"{number}_{chance.randint(0, 30)}", f"{number}+0"]),
            submit_s=submit_s, start_s=start_s, end_s=start_s + took_s, nodes=nodes,
            limit_s=limit_s,
        )  # fmt: skip
        runs.append(run)
        kind = chance.random()
        if kind < 0.06 and took_s > 400:  # the node fails, and the job runs once more elsewhere
            fails_s = start_s + took_s // 3
            again_s = run.end_s + 120
            runs[-1] = replace(run, end_s=fails_s, state="NODE_FAIL")
            runs.append(
                replace(run, submit_s=fails_s, start_s=again_s, end_s=again_s + took_s // 2)
            )
            took_s = again_s + took_s // 2 - start_s
        elif kind < 0.12 and took_s > 300:
            runs[-1] = replace(run, suspended_s=100)
        for node in nodes:
            free_at[node] = start_s + took_s + chance.choice([0, 0, 30, 400, 3000])
    return Site(runs=tuple(runs), n_nodes=n_nodes, begin_s=begin_s, end_s=begin_s + days * DAY_S)


def with_closed(site: Site, seed: int) -> Site:
    """Return the site with nodes that were closed at times; some drained while a job ran on."""
    chance = random.Random(seed)  # noqa: S311
    begins = [chance.randint(site.begin_s - DAY_S, site.end_s) for _ in range(30)]
    closed = [
        (chance.randrange(site.n_nodes), start_s, start_s + chance.randint(60, DAY_S))
        for start_s in begins
    ]
    return replace(site, closed=tuple(closed))


def sacctmgr_events(site: Site, *, now_s: int) -> str:
    """Return what ``sacctmgr --parsable2 show event`` prints, a cluster's event with it."""
    rows = ["NodeName|TimeStart|TimeEnd|State", f"|{site.begin_s}|Unknown|"]
    rows += [
        f"n{node}|{start_s}|{end_s if end_s <= now_s else 'Unknown'}|DRAIN"
        for node, start_s, end_s in site.closed
        if start_s <= now_s
    ]
    return "\n".join(rows) + "\n"


def sacct(
    site: Site,
    *,
    is_truncated: bool,
    now_s: int | None = None,
    zone: str | None = None,
    has_elapsed: bool = True,
    has_duplicates: bool = True,
) -> str:
    """Return what ``sacct --parsable2`` prints of the time of the site, asked at ``now_s``.

    ``zone``: local times of it, as without SLURM_TIME_FORMAT; None: seconds of the epoch.
    """
    now_s = site.end_s + 3 * DAY_S if now_s is None else now_s
    head = [
        "JobID",
        "Submit",
        "Eligible",
        "Start",
        "End",
        "NNodes",
        "NodeList",
        "State",
        "Timelimit",
    ]
    head += ["ElapsedRaw", "Suspended"] if has_elapsed else []
    rows = ["|".join(head)]
    last_run = {run.job_id: run for run in site.runs}
    for run in site.runs:
        is_listed = run.submit_s < min(site.end_s, now_s) and run.end_s >= site.begin_s
        if is_listed and (has_duplicates or last_run[run.job_id] == run):
            rows.append("|".join(_row(run, site, is_truncated, now_s, zone, has_elapsed)))
    return "\n".join(rows) + "\n"


def _row(
    run: Run, site: Site, is_truncated: bool, now_s: int, zone: str | None, has_elapsed: bool
) -> Iterator[str]:
    start_s = run.start_s if run.start_s <= now_s else 0
    end_s = run.end_s if run.end_s <= now_s else 0
    state = run.state if end_s else "RUNNING" if start_s else "PENDING"
    nodes = ",".join(f"n{node}" for node in run.nodes) if start_s else "None assigned"
    if is_truncated:
        until_s = min(site.end_s, now_s)
        start_s = max(start_s, site.begin_s) if start_s else 0
        end_s = min(end_s, until_s) if end_s else until_s
        start_s = start_s or end_s
    elapsed_s = (end_s or now_s) - start_s - run.suspended_s if start_s else 0

    def when(at_s: int) -> str:
        if not at_s:
            return "Unknown"
        if zone is None:
            return str(at_s)
        return (
            datetime.fromtimestamp(at_s, UTC)
            .astimezone(ZoneInfo(zone))
            .strftime("%Y-%m-%dT%H:%M:%S")
        )

    yield from (run.job_id, when(run.submit_s), when(run.submit_s), when(start_s), when(end_s))
    yield from (str(len(run.nodes)), nodes, state, f"{run.limit_s // 60}:00")
    if has_elapsed:
        yield from (str(elapsed_s), f"00:{run.suspended_s // 60:02d}:{run.suspended_s % 60:02d}")


def lsb_acct(site: Site) -> str:
    """Return the JOB_FINISH records of the time of the site."""
    ended = sorted(site.runs, key=lambda run: run.end_s)
    return "\n".join(
        f'"JOB_FINISH" "10.1" {run.end_s} {k} 1000 33554434 {len(run.nodes)} {run.submit_s} 0 0 '
        f'{run.start_s} "ann" "batch" "" "" "" "login1" "/home/ann" "" "" "" "f" 0 '
        f"{len(run.nodes)} {' '.join(f'{chr(34)}n{node}{chr(34)}' for node in run.nodes)} 64 60.0"
        for k, run in enumerate(ended, start=1)
        if site.begin_s <= run.end_s < site.end_s
    )


def swf(site: Site, chosen: Sequence[Run]) -> str:
    """Return some runs in the Standard Workload Format."""
    origin_s = min(run.submit_s for run in chosen)
    lines = [f"; UnixStartTime: {origin_s}", f"; MaxNodes: {site.n_nodes}"]
    lines += [
        f"{k} {run.submit_s - origin_s} {run.start_s - run.submit_s} {run.end_s - run.start_s} "
        f"{len(run.nodes)} -1 -1 {len(run.nodes)} {run.limit_s} -1 1 1 1 -1 1 1 -1 -1"
        for k, run in enumerate(sorted(chosen, key=lambda run: run.submit_s), start=1)
    ]
    return "\n".join(lines) + "\n"
