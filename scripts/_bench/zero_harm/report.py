"""Results of cells as tables: on the console, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from _bench.targets import console
from _bench.zero_harm.compare import Spread
from _bench.zero_harm.verdict import Result, in_short

N_WORST = 3
WORST = ("cell", "draw/job", "nodes", "submitted", "controls", "B", "later than ever")
ADDED = ("cell", "run", "median", "p95", "p99", "max")
POOLED = ("cell", "runs", "median", "p95", "p99", "p95 by run", "overtaken", "and later",
          "lost a cycle", "refused", "beside us", "makespan")  # fmt: skip
TEXTS = {"cell", "run", "runs"}
Row = tuple[str, ...]
HARVEST = ("cell", "idle", "oracle", "in A", "held", "trained", "of oracle", "of idle", "pilots",
           "back", "preempted", "CPU %")  # fmt: skip


def tables(results: Sequence[Result]) -> tuple[tuple[str, Sequence[str], list[Row]], ...]:
    """Return title, headings and rows of what is said of the results."""
    return (
        ("Start of ordinary jobs, s: B less A, and A' less A", ADDED, list(added_rows(results))),
        (
            "Each run with bftrainer less each control; each control less each other",
            POOLED,
            list(pooled_rows(results)),
        ),
        ("Node-seconds, mean of a run; processors in use", HARVEST, list(harvest_rows(results))),
    )


def print_results(results: Sequence[Result]) -> None:
    """Print all tables."""
    worst = "Jobs that were most delayed, s after the start of the run"
    for title, headings, rows in ((worst, WORST, worst_rows(results)), *tables(results)):
        table = Table(title=title, title_justify="left")
        for heading in headings:
            table.add_column(heading, justify="left" if heading in TEXTS else "right")
        for row in rows:
            table.add_row(*row)
        console().print(table)


def worst_rows(results: Sequence[Result]) -> Iterator[Row]:
    """The few jobs of each cell that started latest beside all runs without bftrainer."""
    for result in results:
        jobs = sorted(result.comparison.jobs, key=lambda j: -j.beyond_s)[:N_WORST]
        for job in jobs:
            yield (
                *(
                    result.cell.name,
                    f"{job.draw + 1}/{job.number}",
                    str(job.n_nodes),
                    f"{job.planned_s:.2f}",
                ),
                *(" ".join(f"{s:.1f}" for s in runs) for runs in (job.without_s, job.with_s)),
                f"{job.beyond_s:.2f}",
            )


def added_rows(results: Sequence[Result]) -> Iterator[Row]:
    """Two rows per cell: with bftrainer, the control."""
    for result in results:
        found = result.comparison
        for cell, run, harm in ((result.cell.name, "B", found.harm), ("", "A'", found.control)):
            yield (cell, run, *_quantiles(harm.added), f"{harm.added.max_s:.2f}")


def pooled_rows(results: Sequence[Result]) -> Iterator[Row]:
    """Two rows per cell: the runs with bftrainer, the controls."""
    for result in results:
        found = result.comparison
        for cell, kind, harm in ((result.cell.name, "B", found.harm), ("", "A", found.control)):
            by_run: tuple[Sequence[float], ...] = (
                *(harm.p95_s, harm.overtaken, harm.moved_behind, harm.lost_a_cycle),
                *(harm.refused, harm.refused_beside, harm.makespan_s),
            )
            yield (
                *(cell, f"{len(harm.refused)} {kind}", *_quantiles(harm.pooled)),
                *(in_short(values) for values in by_run),
            )


def _quantiles(of: Spread) -> tuple[str, ...]:
    return tuple(f"{s:.2f}" for s in (of.median_s, of.p95_s, of.p99_s))


def harvest_rows(results: Sequence[Result]) -> Iterator[Row]:
    """One row per cell."""
    for result in results:
        got, runs = result.harvest, result.sidecars
        seconds = (got.idle_s, got.oracle_s, got.oracle_without_s, got.held_s, got.training_s)
        yield (
            result.cell.name,
            *(f"{s:,.0f}" for s in seconds),
            *(f"{100.0 * share:.1f}%" for share in (got.of_oracle, got.of_idle)),
            in_short([s.pilots for s in runs]),
            in_short([s.give_backs for s in runs]),
            in_short([s.preemptions for s in runs]),
            " ".join(f"{100.0 * share:.0f}" for share in result.cpu_shares),
        )


def as_values(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return everything but the spans, which the kept runs have."""
    values = []
    for result in results:
        plain = asdict(result)
        for sidecar in plain["sidecars"]:
            for bulky in ("held", "training", "plans"):
                del sidecar[bulky]
        plain["harvest"] |= {
            "of_oracle": result.harvest.of_oracle,
            "of_idle": result.harvest.of_idle,
        }
        values.append(plain)
    return values
