"""Runs of one cell → its result and the targets it has to meet. Pure; called by ``report``."""

from __future__ import annotations

from dataclasses import dataclass

from _bench.targets import Target
from _bench.zero_harm import idle
from _bench.zero_harm.cells import Cell
from _bench.zero_harm.compare import Comparison, Spread, compare, spread, start_differences
from _bench.zero_harm.runs import Run, Sidecar, length_s

MAX_P95_BEYOND_S = 1.0
MIN_OF_ORACLE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """Node-seconds of a run with bftrainer."""

    idle_s: float
    oracle_s: float  # in the idle intervals of this run
    oracle_without_s: float  # in those of run A
    held_s: float
    training_s: float
    start_delay_s: float  # what the oracle waits for Slurm to start a pilot

    @property
    def of_oracle(self) -> float:
        """Share of what an oracle under the same rules would have held."""
        return self.held_s / self.oracle_s if self.oracle_s else 1.0

    @property
    def of_idle(self) -> float:
        """The raw share."""
        return self.held_s / self.idle_s if self.idle_s else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All that is said of one cell."""

    cell: Cell
    comparison: Comparison
    shifted: Spread | None  # the jobs of A, all submitted at another phase of the scheduler
    harvest: Harvest
    sidecar: Sidecar
    cpu_shares: tuple[float, float, float]  # of A, A', B


def judge(
    cell: Cell, a: Run, again: Run, b: Run, rules: idle.Rules, shifted: Run | None = None
) -> Result:
    """Compare the runs of a cell; ``rules.start_s`` is replaced by what run A shows."""
    if b.sidecar is None:
        raise ValueError(f"{b.name} ran without bftrainer")
    start_s = idle.start_delay_s(a)
    rules = idle.Rules(reserve=rules.reserve, shortest_gap_s=rules.shortest_gap_s, start_s=start_s)
    return Result(
        cell=cell,
        comparison=compare(a, again, b),
        shifted=None if shifted is None else spread(start_differences(shifted, a)),
        harvest=Harvest(
            idle_s=sum(gap.end_s - gap.start_s for gap in idle.idle_intervals(b)),
            oracle_s=idle.oracle_node_s(b, rules),
            oracle_without_s=idle.oracle_node_s(a, rules),
            held_s=length_s(b.sidecar.held),
            training_s=length_s(b.sidecar.training),
            start_delay_s=start_s,
        ),
        sidecar=b.sidecar,
        cpu_shares=(a.cpu_share, again.cpu_share, b.cpu_share),
    )


def targets(result: Result) -> list[Target]:
    """Return what this cell has to reach; empty where its cost is the result."""
    cell, found = result.cell, result.comparison
    note = f"{found.n_jobs} jobs, beyond the control"
    wanted: list[Target] = []
    if cell.must_pass:
        interval_s = float(cell.settings.bf_interval_s)
        wanted = [
            Target(
                name=f"{cell.name}: added delay, p95",
                measured=found.p95_beyond_s,
                limit=MAX_P95_BEYOND_S,
                relation="<=",
                note=note,
            ),
            Target(
                name=f"{cell.name}: added delay, p99",
                measured=found.p99_beyond_s,
                limit=interval_s - 0.001,  # less than one interval
                relation="<=",
                note=note,
            ),
            Target(
                name=f"{cell.name}: jobs moved behind another",
                measured=max(0, found.moved_behind_beyond),
                limit=0,
                relation="<=",
                unit="jobs",
                note=f"{len(found.harm.moved_behind)}, control {len(found.control.moved_behind)}",
            ),
            Target(
                name=f"{cell.name}: immediate jobs refused",
                measured=max(0, found.harm.refused - found.control.refused),
                limit=0,
                relation="<=",
                unit="jobs",
                note=f"{found.harm.refused}, control {found.control.refused}",
            ),
            Target(
                name=f"{cell.name}: held, of the oracle",
                measured=result.harvest.of_oracle,
                limit=MIN_OF_ORACLE,
                relation=">=",
                unit="",
                note=f"{result.harvest.oracle_s:,.0f} node-s",
            ),
        ]
    if cell.max_lost_cycles is not None:
        wanted.append(
            Target(
                name=f"{cell.name}: jobs that lost a cycle",
                measured=100.0 * found.lost_cycle_share,
                limit=100.0 * cell.max_lost_cycles,
                relation="<=",
                unit="%",
                note=note,
            )
        )
    return wanted
