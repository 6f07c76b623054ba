"""Results of cells as tables: on the console, in a document, as plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from _bench.targets import Target, console
from _bench.zero_harm.compare import Harm, Spread
from _bench.zero_harm.verdict import Result

N_WORST = 3
WORST = ("cell", "job", "nodes", "submitted", "A", "A'", "B", "later than in both")
BEGIN, END = "<!-- numbers: bench_zero_harm -->", "<!-- numbers: end -->"
DELAYS = ("cell", "run", "median", "p95", "p99", "max", "overtaken", "and later", "lost a cycle",
          "refused", "makespan")  # fmt: skip
HARVEST = ("cell", "idle", "oracle", "in A", "held", "trained", "of oracle", "of idle", "pilots",
           "back", "preempted", "CPU %")  # fmt: skip


def print_results(results: Sequence[Result]) -> None:
    """Print all tables."""
    for title, headings, rows in (
        ("Jobs that were most delayed, s after the start of the run", WORST, worst_rows(results)),
        ("Start of ordinary jobs, s, run minus A", DELAYS, delay_rows(results)),
        ("Node-seconds; processors in use in A, A', B", HARVEST, harvest_rows(results)),
    ):
        table = Table(title=title, title_justify="left")
        for heading in headings:
            table.add_column(heading, justify="left" if heading in {"cell", "run"} else "right")
        for row in rows:
            table.add_row(*row)
        console().print(table)


def worst_rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """The few jobs of each cell that started latest beside both runs without bftrainer."""
    for result in results:
        jobs = sorted(result.comparison.jobs, key=lambda j: -j.beyond_both_s)[:N_WORST]
        for job in jobs:
            times = (job.planned_s, job.a_s, job.again_s, job.b_s, job.beyond_both_s)
            yield (
                *(result.cell.name, str(job.number), str(job.n_nodes)),
                *(f"{seconds:.2f}" for seconds in times),
            )


def delay_rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """Two or three rows per cell: with bftrainer, the control, chance."""
    for result in results:
        yield _delays(result.cell.name, "B", result.comparison.harm)
        yield _delays("", "A'", result.comparison.control)
        if result.shifted is not None:
            nothing = [""] * (len(DELAYS) - 6)
            yield ("", "shifted", *_quantiles(result.shifted), *nothing)


def _delays(cell: str, run: str, harm: Harm) -> tuple[str, ...]:
    jobs = (harm.overtaken, harm.moved_behind, harm.lost_a_cycle)
    counts = (*map(len, jobs), harm.refused)
    return (
        *(cell, run),
        *_quantiles(harm.added),
        *map(str, counts),
        f"{harm.makespan_s:.0f}",
    )


def _quantiles(of: Spread) -> tuple[str, ...]:
    return tuple(f"{s:.2f}" for s in (of.median_s, of.p95_s, of.p99_s, of.max_s))


def harvest_rows(results: Sequence[Result]) -> Iterator[tuple[str, ...]]:
    """One row per cell."""
    for result in results:
        got, sidecar = result.harvest, result.sidecar
        seconds = (got.idle_s, got.oracle_s, got.oracle_without_s, got.held_s, got.training_s)
        yield (
            result.cell.name,
            *(f"{s:,.0f}" for s in seconds),
            *(f"{100.0 * share:.1f}%" for share in (got.of_oracle, got.of_idle)),
            *map(str, (sidecar.pilots, sidecar.give_backs, sidecar.preemptions)),
            " ".join(f"{100.0 * share:.0f}" for share in result.cpu_shares),
        )


def as_values(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return everything but the spans, which the kept runs have."""
    values = []
    for result in results:
        plain = asdict(result)
        for bulky in ("held", "training", "plans"):
            del plain["sidecar"][bulky]
        plain["harvest"] |= {
            "of_oracle": result.harvest.of_oracle,
            "of_idle": result.harvest.of_idle,
        }
        values.append(plain)
    return values


def require_marks(path: Path) -> None:
    """End the program unless the document can take results: better before an hour of runs."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if BEGIN not in text or END not in text.partition(BEGIN)[2]:
        raise SystemExit(f"{path} lacks the marks {BEGIN} and {END}")


def write_document(
    path: Path, results: Sequence[Result], targets: Sequence[Target], measured_on: str
) -> None:
    """Replace what stands between the marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    verdicts = [
        (t.name, f"{t.relation} {t.in_words(t.limit)}", t.in_words(t.measured), t.note, t.verdict)
        for t in targets
    ]
    lines = [BEGIN, "", f"{measured_on}.", ""]
    for headings, rows in (
        (("target", "to reach", "measured", "of", ""), verdicts),
        (DELAYS, list(delay_rows(results))),
        (HARVEST, list(harvest_rows(results))),
    ):
        lines += [_row(headings), _row(["---"] * len(headings)), *map(_row, rows), ""]
    path.write_text(before + "\n".join([*lines, END]) + after, encoding="utf-8")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
