"""What was kept of a run → figures of each arm, with exact 95% intervals of counts.

Called by ``bench_blocks``. The first two minutes of each block are left out. Counted are

* *lost cycles*: at the begin of a backfill cycle the job fits, by a plan of the ordinary queue as
  backfill makes it (``_bench.site``: priorities, limits, slots) on nodes that are free or have a
  pilot, and it has not started when the next cycle begins. *For want of our nodes*: it would not
  fit if the pilots' nodes were taken. The others are what the plan and Slurm's do not agree on.
* *preemptions*: pilots that slurmctld killed for an ordinary job, by its log.
* *harvest*: node-seconds of pilots from their agent's hello to the order to leave (journal), of
  the node-seconds without an ordinary job (slurmctld's log).
* *submissions* of pilots, by slurmctld's log.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.table import Table

from _bench.blocks.slurmlog import Log, Seen, read
from _bench.site.backfill import startable
from _bench.site.jobs import Job, JobSpec
from _bench.site.nodesets import NodeSet, positions
from _bench.site.timeline import Timeline
from _bench.stats import poisson_interval, share_interval
from _bench.targets import console, write_json
from _bench.zero_harm.idle import without
from _bench.zero_harm.runs import NodeSpan

RAMP_S = 120.0
SLOT_S = 60.0  # bf_resolution
WINDOW_S = 86_400.0  # bf_window
Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one block, or of all blocks of an arm together."""

    arm: str
    seconds: float
    cycles_s: tuple[float, ...]  # how long each took
    submitted: int  # ordinary jobs that nobody cancelled while they waited
    started: int
    by_backfill: int
    waits_s: tuple[float, ...]  # of those that started
    fitted: int  # jobs and cycles
    lost: int  # of them
    lost_for_ours: int
    fitted_on_ours: int
    preempted: int
    preempted_for: int  # ordinary jobs
    submissions: int
    free_node_s: float  # without an ordinary job
    held_node_s: float
    n_nodes: int
    daemon_cpu_s: float
    whole_s: float  # of the block, the first minutes included: what the processor time is of
    load: tuple[float, ...]  # of the machine, averages of a minute

    def __add__(self, other: Figures) -> Figures:
        """Take two blocks together."""
        mine, its = asdict(self), asdict(other)
        kept = {"arm": self.arm, "n_nodes": self.n_nodes}
        return Figures(**{**{key: mine[key] + its[key] for key in mine}, **kept})


def report(keep: Path, out: Path | None) -> None:
    """Print the figures of what is kept, and write them to a file."""
    blocks = evaluate(keep)
    arms = {
        name: sum((b for b in of[1:]), of[0])
        for name in ("old", "new")
        if (of := [block for block in blocks if block.arm == name])
    }
    table = Table(title="Blocks on a real Slurm", title_justify="left")
    table.add_column("")
    for name in arms:
        table.add_column(name, justify="right")
    for row in zip(*map(lines, arms.values()), strict=True):
        table.add_row(row[0][0], *(value for _, value in row))
    console().print(table)
    for block in blocks:
        console().print(", ".join(f"{name} {value}" for name, value in lines(block)))
    if out:
        of_arms = {name: asdict(one) for name, one in arms.items()}
        body = {"blocks": [asdict(block) for block in blocks], "arms": of_arms}
        write_json(out, "blocks", body, [])


def lines(one: Figures) -> list[tuple[str, str]]:
    """Return figures by name, in words."""
    hours = one.seconds / 3600.0
    long_s = one.cycles_s or (math.nan,)
    cycles = f"{median(long_s):.1f} ({min(long_s):.1f} to {max(long_s):.1f})"
    return [
        ("hours counted", f"{hours:.2f}"),
        ("backfill cycles; length, s: median (all)", f"{len(one.cycles_s)}; {cycles}"),
        ("ordinary jobs submitted / started / by backfill",
         f"{one.submitted} / {one.started} / {one.by_backfill}"),
        ("their mean wait, s", f"{fmean(one.waits_s or (0.0,)):.0f}"),
        ("lost cycles, of jobs that fitted at the begin of one", _share(one.lost, one.fitted)),
        ("of these for want of our nodes", _share(one.lost_for_ours, one.fitted_on_ours)),
        ("pilots preempted", _count(one.preempted)),
        ("ordinary jobs they were preempted for", _share(one.preempted_for, one.started)),
        ("submissions", _count(one.submissions)),
        ("submissions per node and hour", f"{one.submissions / one.n_nodes / hours:.1f}"),
        ("node-hours without an ordinary job", f"{one.free_node_s / 3600.0:.1f}"),
        ("harvest of them", f"{one.held_node_s / one.free_node_s:.1%}"),
        ("processor time of the daemon, s per hour",
         f"{3600.0 * one.daemon_cpu_s / one.whole_s:.0f}"),
        ("load of the machine, mean", f"{fmean(one.load or (math.nan,)):.1f}"),
    ]  # fmt: skip


def _count(count: int) -> str:
    low, high = poisson_interval(count)
    return f"{count} [{low:.0f}, {high:.0f}]"


def _share(count: int, total: int) -> str:
    low, high = share_interval(count, total) if total else (0.0, 1.0)
    return f"{count} of {total} [{low:.1%}, {high:.1%}]"


def evaluate(keep: Path) -> list[Figures]:
    """Return the figures of each block whose journal has been read."""
    stream = (keep / "jobs.jsonl").read_text().splitlines()
    log = read((keep / "slurmctld.log").read_text(errors="replace"), stream)
    plan = json.loads((keep / "plan.json").read_text())
    samples = [json.loads(line) for line in (keep / "samples.jsonl").read_text().splitlines()]
    found = []
    for block in json.loads((keep / "blocks.json").read_text()):
        journal = keep / f"block{block['number']}-pilots.json"
        if not journal.exists():
            continue  # of a block that has just ended
        changes = json.loads(journal.read_text())["pilots"]
        ramp_s = min(RAMP_S, 60.0 * plan["minutes"] / 3.0)
        span = (block["began_s"] + ramp_s, block["ended_s"])
        one = figures(log, changes, span, plan["n_nodes"], plan["bf_interval_s"])
        whole_s = block["ended_s"] - block["began_s"]
        load = tuple(s["load"][0] for s in samples if span[0] <= s["at_s"] < span[1])
        cpu_s = block["daemon_cpu_s"]
        found.append(replace(one, arm=block["arm"], whole_s=whole_s, daemon_cpu_s=cpu_s, load=load))
    return found


def figures(
    log: Log, changes: Sequence[Sequence[Any]], span: Span, n_nodes: int, bf_interval_s: float
) -> Figures:
    """Return what happened in a span of time.

    ``changes`` of pilots are as ``inside`` writes them: when, pilot, job, node, state, reason.
    A cycle begins ``bf_interval_s`` after the end of the one before.
    """
    stream = [job for job in log.jobs.values() if job.is_of_stream]
    started = [job for job in stream if _in(job.start_s, span)]
    begins = [at_s for at_s in log.cycles_s if _in(at_s, span)]
    outcomes = Counter[tuple[bool, bool]]()  # was ours needed; was the cycle lost
    for at_s, next_s in pairwise(begins):
        alone = _fitting(log, at_s, n_nodes, with_ours=False)
        for job_id in _fitting(log, at_s, n_nodes, with_ours=True):
            outcomes[job_id not in alone, log.jobs[job_id].waits_at(next_s)] += 1
    preempted = [by for at_s, _, by in log.preempted if _in(at_s, span)]
    busy = _busy(log, span)
    submitted = [job for job in log.jobs.values() if _in(job.submit_s, span)]
    kept = [job for job in submitted if job.is_of_stream and job.start_s <= job.end_s]
    return Figures(
        arm="",
        seconds=span[1] - span[0],
        cycles_s=tuple(b - a - bf_interval_s for a, b in pairwise(begins)),
        submitted=len(kept),
        started=len(started),
        by_backfill=sum(job.by_backfill for job in started),
        waits_s=tuple(job.start_s - job.submit_s for job in started),
        fitted=sum(outcomes.values()),
        lost=outcomes[True, True] + outcomes[False, True],
        lost_for_ours=outcomes[True, True],
        fitted_on_ours=outcomes[True, True] + outcomes[True, False],
        preempted=len(preempted),
        preempted_for=len(set(preempted)),
        submissions=sum(not job.is_of_stream for job in submitted),
        free_node_s=n_nodes * (span[1] - span[0]) - _length(busy),
        held_node_s=_length(without(_held(log, changes, span), busy)),
        n_nodes=n_nodes,
        daemon_cpu_s=0.0,
        whole_s=span[1] - span[0],
        load=(),
    )


def _fitting(log: Log, at_s: float, n_nodes: int, *, with_ours: bool) -> set[str]:
    """Return who would start at once if backfill planned the queue now."""
    free: NodeSet = (1 << n_nodes) - 1
    ends: list[tuple[float, NodeSet]] = []
    queue: list[Seen] = []
    for job in log.jobs.values():
        if job.is_on_at(at_s) and not (job.is_pilot and with_ours):
            free &= ~job.nodes
            ends.append((job.start_s + job.limit_s, job.nodes))
        elif job.is_of_stream and job.waits_at(at_s):
            queue.append(job)
    timeline = Timeline(at_s, free, ends, SLOT_S)
    return {str(job.spec.number) for job in startable(timeline, map(_planned, queue), WINDOW_S)}


def _planned(job: Seen) -> Job:
    spec = JobSpec(
        number=int(job.job_id),
        submit_s=job.submit_s,
        n_nodes=job.n_nodes,
        limit_s=job.limit_s,
        run_s=job.limit_s,
    )
    return Job(spec=spec)


def _busy(log: Log, span: Span) -> list[NodeSpan]:
    """Return when nodes had an ordinary job."""
    return [
        one
        for job in log.jobs.values()
        if not job.is_pilot
        for node in positions(job.nodes)
        for one in _clip(f"n{node + 1}", job.start_s, job.end_s, span)
    ]


def _held(log: Log, changes: Iterable[Sequence[Any]], span: Span) -> list[NodeSpan]:
    """Return when nodes had a pilot whose agent was there and not told to leave."""
    since: dict[str, tuple[float, str, str]] = {}
    left_s: dict[str, float] = {}
    for at_s, pilot, job_id, node, state, _ in changes:
        if state == "running":
            since.setdefault(pilot, (at_s, job_id, node))
        elif state in ("cancelled", "ended"):
            left_s.setdefault(pilot, at_s)
    found: list[NodeSpan] = []
    for pilot, (at_s, job_id, node) in since.items():
        # Slurm's end of a preempted one comes before the daemon sees it.
        end_s = min(left_s.get(pilot, math.inf), log.jobs[job_id].end_s)
        found += _clip(node, at_s, end_s, span)
    return found


def _clip(node: str, start_s: float, end_s: float, to: Span) -> list[NodeSpan]:
    start_s, end_s = max(start_s, to[0]), min(end_s, to[1])
    return [NodeSpan(node=node, start_s=start_s, end_s=end_s)] if end_s > start_s else []


def _length(spans: Iterable[NodeSpan]) -> float:
    return sum(one.end_s - one.start_s for one in spans)


def _in(at_s: float, span: Span) -> bool:
    return span[0] <= at_s < span[1]
