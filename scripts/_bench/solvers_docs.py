"""The results as Markdown, written between two marks of a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from _bench import marks
from _bench.targets import Target
from _bench.timing import Part, Row, milliseconds

NAME = "bench_solvers"


def require_marks(path: Path) -> None:
    """End the program unless the document can take results: better before hours of work."""
    if not marks.has_marks(path, NAME):
        raise SystemExit(f"{path} lacks the marks of {NAME}")


def write_results(path: Path, parts: Sequence[Part], measured_on: str) -> None:
    """Replace what stands between the marks by tables of rows and targets."""
    lines = [f"{measured_on}.", ""]
    lines += [*_targets([t for part in parts for t in part.targets]), ""]
    for part in parts:
        if part.rows:
            lines += [f"### {part.title}", "", *_rows(part.rows), ""]
    marks.replace_between(path, NAME, lines[:-1])


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    yield "| | problems | trainers x nodes | runs | median ms | p95 ms | max ms | outcome |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for row in rows:
        times = " | ".join(milliseconds(v) for v in (row.median_s, row.p95_s, row.max_s))
        size = f"{row.trainers:,} x {row.nodes:,}"
        yield f"| {row.what} | {row.family} | {size} | {row.runs} | {times} | {row.outcome} |"


def _targets(targets: Sequence[Target]) -> Iterator[str]:
    yield "| target | to reach | measured | of | |"
    yield "| --- | ---: | ---: | --- | --- |"
    for t in targets:
        limit, measured = t.in_words(t.limit), t.in_words(t.measured)
        yield f"| {t.name} | {t.relation} {limit} | {measured} | {t.note} | {t.verdict} |"
