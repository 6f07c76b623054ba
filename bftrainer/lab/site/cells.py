"""The cells of the grid: machines and loads, and the stage that a seed makes of each. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

from bftrainer.lab.site import workload
from bftrainer.lab.site.arms import SharedStage
from bftrainer.lab.site.jobs import JobSpec
from bftrainer.lab.site.machine import Maintenance, SchedulerSettings
from bftrainer.lab.site.workload import Demand, generate

INTERVALS_S = (30.0, 120.0)
SHORTEST_CYCLE_S = 0.5
CYCLE_SHARES = (0.25, 0.5, 1.0)  # of an interval
SEEDS = 5
WARM_S = 2 * 3600.0
LOAD = 1.2  # asked for; what is submitted late runs beyond the end, so that this is about 0.9 used
MAINTENANCE_SHARE = 1 / 16  # of the nodes, for an hour
MAINTENANCE_AT, MAINTENANCE_S = 0.4, 3600.0  # of the span that is counted


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
            return workload.read(self.log, n_nodes=self.n_nodes, load=self.load, span_s=span_s)
        return generate(Demand(n_nodes=self.n_nodes, span_s=span_s, load=self.load, seed=seed))


def grid() -> tuple[Cell, ...]:
    """Return the whole grid at 500 nodes."""
    return tuple(
        Cell(bf_interval_s=interval_s, bf_duration_s=duration_s)
        for interval_s in INTERVALS_S
        for duration_s in (SHORTEST_CYCLE_S, *(share * interval_s for share in CYCLE_SHARES))
    )


def large() -> Cell:
    """Return the cell of 5,000 nodes: one day."""
    return Cell(bf_interval_s=120.0, bf_duration_s=30.0, n_nodes=5000, hours=24.0)


def quick() -> tuple[Cell, ...]:
    """Return a small machine whose cycles are short, and long."""
    small: Callable[[float], Cell] = lambda duration_s: Cell(  # noqa: E731
        bf_interval_s=30.0, bf_duration_s=duration_s, n_nodes=64, hours=2.0, warm_s=3600.0
    )
    return small(SHORTEST_CYCLE_S), small(30.0)
