"""The results as Markdown, written between two marks of a document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from _bench.targets import Target
from _bench.timing import Part, Row, milliseconds

BEGIN, END = "<!-- numbers: bench_solvers -->", "<!-- numbers: end -->"


def require_marks(path: Path) -> None:
    """End the program unless the document can take results: better before hours of work."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if BEGIN not in text or END not in text.partition(BEGIN)[2]:
        raise SystemExit(f"{path} lacks the marks {BEGIN} and {END}")


def write_results(path: Path, parts: Sequence[Part], measured_on: str) -> None:
    """Replace what stands between the marks by tables of rows and targets."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    lines = [BEGIN, "", f"{measured_on}.", ""]
    lines += [*_targets([t for part in parts for t in part.targets]), ""]
    for part in parts:
        if part.rows:
            lines += [f"### {part.title}", "", *_rows(part.rows), ""]
    lines.append(END)
    path.write_text(before + "\n".join(lines) + after, encoding="utf-8")


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
