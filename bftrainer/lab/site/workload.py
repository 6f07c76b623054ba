"""Ordinary jobs of the simulated site, generated or from a file in SWF, and the cells of the grid.

Groups arrive at random: single jobs of many sizes, and arrays of small tasks of which most take
equally long. Run times are lognormal, limits a multiple of them, some jobs fail at once;
priorities are those of the users' shares. There are as many as make the load that was asked
for, and at the begin some more, which fill the machine.

Fields of SWF: 1 number, 2 submit, 4 run time, 5 processors, 8 processors asked for, 9 time asked
for, 12 user. Sizes shrink in proportion; times stay, but that submissions are drawn together or
apart until the machine is asked for as much as wanted.
"""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from bftrainer.lab.site.arms import SharedStage
from bftrainer.lab.site.machine import JobSpec, Kind, Maintenance, SchedulerSettings

INTERVALS_S = (30.0, 120.0)
SHORTEST_CYCLE_S = 0.5
CYCLE_SHARES = (0.25, 0.5, 1.0)  # of an interval
SEEDS = 5
WARM_S = 2 * 3600.0
LOAD = 1.2  # asked for; what is submitted late runs beyond the end, so that this is about 0.9 used
MAINTENANCE_SHARE = 1 / 16  # of the nodes, for an hour
MAINTENANCE_AT, MAINTENANCE_S = 0.4, 3600.0  # of the span that is counted
# Of the drawn jobs.
ARRAY_SHARE = 0.3  # of groups
FAILING_SHARE = 0.04  # of jobs, within seconds
LARGEST_SHARE = 0.5  # of the machine
USERS = 60
KINDS: tuple[Kind, ...] = ("sbatch", "srun", "immediate")
KIND_SHARES = (0.90, 0.09, 0.01)  # of single jobs
LONGEST_S = 12 * 3600.0
FIRST_LOAD = 1.0  # of the nodes, at the begin
FIELDS = 18  # of a line of SWF


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One machine under one kind of load."""

    bf_interval_s: float
    bf_duration_s: float
    n_nodes: int = 500
    hours: float = 3.0
    warm_s: float = WARM_S
    load: float = LOAD
    start_s: float = 0.0  # of a worker
    poll_s: float | None = None
    log: str = ""  # an SWF log instead of drawn jobs: its text

    @property
    def name(self) -> str:
        """The name of the cell in reports."""
        kind = ", log" if self.log else ""
        return f"{self.n_nodes} nodes, {self.bf_interval_s:g}/{self.bf_duration_s:g} s{kind}"

    def stage(self, seed: int) -> SharedStage:
        """Return what all arms of a seed share."""
        end_s = self.warm_s + 3600.0 * self.hours
        at_s = self.warm_s + MAINTENANCE_AT * (end_s - self.warm_s)
        n_closed = max(1, round(MAINTENANCE_SHARE * self.n_nodes))
        closed = Maintenance(start_s=at_s, end_s=at_s + MAINTENANCE_S, nodes=(1 << n_closed) - 1)
        phase_s = zlib.crc32(f"{seed}".encode()) % 1000 / 1000.0 * self.bf_interval_s
        return SharedStage(
            slurm=SchedulerSettings(
                n_nodes=self.n_nodes,
                bf_interval_s=self.bf_interval_s,
                bf_duration_s=self.bf_duration_s,
                first_cycle_s=phase_s,
            ),
            jobs=self._jobs(seed, end_s),
            warm_s=self.warm_s,
            end_s=end_s,
            maintenance=(closed,),
            start_s=self.start_s,
            poll_s=self.poll_s,
            seed=seed,
        )

    def _jobs(self, seed: int, span_s: float) -> tuple[JobSpec, ...]:
        if self.log:
            return read(self.log, n_nodes=self.n_nodes, load=self.load, span_s=span_s)
        return generate(Demand(n_nodes=self.n_nodes, span_s=span_s, load=self.load, seed=seed))


def grid() -> tuple[Cell, ...]:
    """Return the whole grid at 500 nodes."""
    cells: list[Cell] = []
    for interval_s in INTERVALS_S:
        durations_s = [SHORTEST_CYCLE_S, *(share * interval_s for share in CYCLE_SHARES)]
        cells += [
            Cell(bf_interval_s=interval_s, bf_duration_s=duration_s) for duration_s in durations_s
        ]
    return tuple(cells)


def large() -> Cell:
    """Return the cell of 5,000 nodes: one day."""
    return Cell(bf_interval_s=120.0, bf_duration_s=30.0, n_nodes=5000, hours=24.0)


def quick() -> tuple[Cell, ...]:
    """Return a small machine whose cycles are short, and long."""
    small: Callable[[float], Cell] = lambda duration_s: Cell(  # noqa: E731
        bf_interval_s=30.0, bf_duration_s=duration_s, n_nodes=64, hours=2.0, warm_s=3600.0
    )
    return small(SHORTEST_CYCLE_S), small(30.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The parameters of a drawn workload."""

    n_nodes: int
    span_s: float  # of submissions
    load: float  # node-seconds asked for, of all there are
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    n_nodes: int
    run_s: float
    limit_s: float
    n_tasks: int


def generate(demand: Demand) -> tuple[JobSpec, ...]:
    """Draw the jobs, in order of submission."""
    chance = random.Random(demand.seed)  # noqa: S311 - a workload, not a secret
    shares = [chance.random() for _ in range(USERS)]
    shapes: list[_Shape] = []
    wanted_s = demand.load * demand.n_nodes * demand.span_s
    while wanted_s > 0.0:
        shapes.append(_shape(chance, demand.n_nodes))
        wanted_s -= shapes[-1].n_nodes * shapes[-1].run_s * shapes[-1].n_tasks
    arrivals_s = sorted(chance.uniform(0.0, demand.span_s) for _ in shapes)
    specs: list[JobSpec] = []
    for shape in _first(chance, demand.n_nodes):
        user = chance.randrange(USERS)
        specs += _group(chance, shape, 0.0, user, shares[user], len(specs))
    for shape, at_s in zip(shapes, arrivals_s, strict=True):
        user = chance.randrange(USERS)
        specs += _group(chance, shape, at_s, user, shares[user], len(specs))
    return tuple(specs)


def _first(chance: random.Random, n_nodes: int) -> Iterator[_Shape]:
    """Draw what fills the machine."""
    n_drawn = 0
    while n_drawn < FIRST_LOAD * n_nodes:
        shape = _shape(chance, n_nodes)
        n_drawn += shape.n_nodes * shape.n_tasks
        yield shape


def _shape(chance: random.Random, n_nodes: int) -> _Shape:
    n_tasks = 1
    if chance.random() < ARRAY_SHARE:
        n_tasks = chance.randint(4, 40)
    if n_tasks > 1:
        size, run_s = chance.choice((1, 1, 1, 2)), math.exp(chance.gauss(6.3, 0.8))
    else:
        largest = max(1.0, LARGEST_SHARE * n_nodes)
        size = int(2 ** chance.uniform(0.0, math.log2(largest) * chance.uniform(0.6, 1.0)))
        run_s = math.exp(chance.gauss(7.3, 1.0))
    run_s = min(run_s, LONGEST_S / 2)
    limit_s = math.ceil(run_s * chance.uniform(1.3, 6.0) / 300.0) * 300.0
    return _Shape(n_nodes=size, run_s=run_s, limit_s=min(limit_s, LONGEST_S), n_tasks=n_tasks)


def _group(
    chance: random.Random, shape: _Shape, at_s: float, user: int, share: float, n_before: int
) -> Iterator[JobSpec]:
    number = n_before + 1
    kind: Kind = "sbatch"
    if shape.n_tasks == 1 and shape.n_nodes <= 4:
        (kind,) = chance.choices(KINDS, KIND_SHARES)
    for task in range(shape.n_tasks):
        run_s = shape.run_s
        if shape.n_tasks > 1:
            run_s *= chance.uniform(0.8, 1.2)
        if chance.random() < FAILING_SHARE:
            run_s = chance.uniform(2.0, 30.0)
        yield JobSpec(
            number=number + task,
            submit_s=at_s,
            n_nodes=shape.n_nodes,
            limit_s=shape.limit_s,
            run_s=min(run_s, shape.limit_s),
            priority=round(1000.0 * share),
            user=f"u{user}",
            kind=kind,
            array=number if shape.n_tasks > 1 else 0,
        )


class LoggedJob(NamedTuple):
    """A job of a log that ran."""

    submit_s: float
    run_s: float
    limit_s: float
    processors: float
    user: float


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
    rows = [row for row in map(_row, text.splitlines()) if row is not None]
    if not rows:
        raise ValueError("no job in it ran")
    widest = max(row.processors for row in rows)
    submits_s = [row.submit_s for row in rows]
    first_s = min(submits_s)
    sizes = [max(1, round(0.5 * n_nodes * row.processors / widest)) for row in rows]
    work = sum(n * row.run_s for n, row in zip(sizes, rows, strict=True))
    lasts_s = max(1.0, max(submits_s) - first_s)
    squeeze = work / (load * n_nodes * lasts_s)
    specs: list[JobSpec] = []
    for size, row in zip(sizes, rows, strict=True):
        spec = JobSpec(
            number=len(specs) + 1,
            submit_s=(row.submit_s - first_s) * squeeze,
            n_nodes=size,
            limit_s=math.ceil(max(row.limit_s, row.run_s) / 60.0) * 60.0,
            run_s=row.run_s,
            user=f"u{row.user:.0f}",
        )
        specs.append(spec)
    specs.sort(key=attrgetter("submit_s"))
    return tuple(spec for spec in specs if spec.submit_s < span_s)


def _row(line: str) -> LoggedJob | None:
    """Return the job of a line; None: no job, or one that never ran."""
    cells = line.split()
    if not cells or cells[0].startswith(";"):
        return None
    if len(cells) != FIELDS:
        raise ValueError(f"{len(cells)} fields, not {FIELDS}: not the Standard Workload Format")
    # Left out are number, wait, processor time, memory, memory asked for, status, and all after
    # the user.
    _, submit_s, _, run_s, n_used, _, _, n_asked, limit_s, _, _, user, *_ = map(float, cells)
    processors = max(n_used, n_asked)
    if run_s <= 0 or processors <= 0:
        return None
    return LoggedJob(submit_s, run_s, limit_s, processors, user)
