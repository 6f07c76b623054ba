"""Runs of one cell → its result and the targets it has to meet. Pure; called by ``report``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from _bench.targets import Target
from _bench.zero_harm import idle
from _bench.zero_harm.cells import Cell
from _bench.zero_harm.compare import Comparison, Draw, compare
from _bench.zero_harm.runs import Run, Sidecar, length_s

MAX_P95_BEYOND_S = 1.0
MIN_OF_ORACLE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """Node-seconds of a run with bftrainer; the mean of all of them."""

    idle_s: float
    oracle_s: float  # in the idle intervals of this run
    oracle_without_s: float  # in those of the controls
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
    harvest: Harvest
    sidecars: tuple[Sidecar, ...]  # run by run
    cpu_shares: tuple[float, float]  # of the machine, without and with bftrainer


def judge(cell: Cell, draws: Sequence[Draw], rules: idle.Rules) -> Result:
    """Compare the runs of a cell; ``rules.start_s`` is replaced by what each draw's A shows."""
    runs = [run for draw in draws for run in draw.runs]
    controls = [run for draw in draws for run in draw.controls]
    starts_s = [idle.start_delay_s(draw.controls[0]) for draw in draws]
    bounds = [replace(rules, start_s=start_s) for start_s in starts_s]
    return Result(
        cell=cell,
        comparison=compare(draws),
        harvest=Harvest(
            idle_s=fmean(
                sum(g.end_s - g.start_s for g in idle.idle_intervals(run)) for run in runs
            ),
            oracle_s=fmean(
                idle.oracle_node_s(run, bound)
                for draw, bound in zip(draws, bounds, strict=True)
                for run in draw.runs
            ),
            oracle_without_s=fmean(
                idle.oracle_node_s(run, bound)
                for draw, bound in zip(draws, bounds, strict=True)
                for run in draw.controls
            ),
            held_s=fmean(length_s(_sidecar(run).held) for run in runs),
            training_s=fmean(length_s(_sidecar(run).training) for run in runs),
            start_delay_s=fmean(starts_s),
        ),
        sidecars=tuple(map(_sidecar, runs)),
        cpu_shares=(fmean(r.cpu_share for r in controls), fmean(r.cpu_share for r in runs)),
    )


def _sidecar(run: Run) -> Sidecar:
    if run.sidecar is None:
        raise ValueError(f"{run.name} ran without bftrainer")
    return run.sidecar


def targets(result: Result) -> list[Target]:
    """Return what this cell has to reach; empty where its cost is the result."""
    cell, found = result.cell, result.comparison
    drawn = f" of {found.n_draws} draws" if found.n_draws > 1 else ""
    note = f"{found.n_jobs} jobs{drawn}, beyond the control"
    wanted: list[Target] = []
    if cell.must_pass:
        interval_s = float(cell.settings.bf_interval_s)
        wanted = [
            Target(
                name=f"{cell.name}: added delay, p95",
                measured=found.p95_beyond_s,
                limit=MAX_P95_BEYOND_S,
                relation="<=",
                note=f"{note}; {_at_random(found.chance.p95_s)}",
            ),
            Target(
                name=f"{cell.name}: added delay, p99",
                measured=found.p99_beyond_s,
                limit=interval_s - 0.001,  # less than one interval
                relation="<=",
                note=f"{note}; {_at_random(found.chance.p99_s)}",
            ),
            Target(
                name=f"{cell.name}: jobs moved behind another",
                measured=max(0, found.moved_behind_beyond),
                limit=0,
                relation="<=",
                unit="jobs",
                note=f"{in_short(found.harm.moved_behind)}; "
                f"controls {in_short(found.control.moved_behind)}",
            ),
            Target(
                name=f"{cell.name}: immediate jobs refused",
                measured=max(0, found.refused_beyond),
                limit=0,
                relation="<=",
                unit="jobs",
                note=f"{in_short(found.harm.refused)}, "
                f"while we held nodes {in_short(found.harm.refused_beside)}; "
                f"controls {in_short(found.control.refused)}",
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


def _at_random(between_s: tuple[float, float]) -> str:
    return "shared out at random {:.1f} to {:.1f} s".format(*between_s)


def in_short(values: Sequence[float]) -> str:
    """Figures of several runs in one cell of a table."""
    return " ".join(f"{value:.3g}" for value in values)
