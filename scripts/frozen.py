"""What today's code decides, kept, and how another version decides on the same.

``record`` freezes samples of journals' decisions, random allocation problems and the outcome
of ``bftrainer reproduce``. ``compare`` runs the code as it is on all of it and lists what
differs, by cause. It returns 0 when nothing does, or only for causes given with ``--expect``.
``accept`` puts today's decisions and answers in the place of those that are frozen.

Journals are those of real runs: ``journal.db`` in the state directory of tests/e2e or of
``bftrainer demo``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # generators of the tests

from _bench.targets import console
from rich.markup import escape
from rich.table import Table

from tests.support.frozen import decisions, problems, reproduced
from tests.support.frozen.changes import CAUSES, Change
from tests.support.frozen.lines import Plain

FROZEN = Path(__file__).resolve().parents[1] / "tests" / "frozen"
PROBLEMS = "problems.jsonl.gz"
PARTS = ("decisions", "problems", "reproduction")
SHOWN = 3  # cases of a cause


def main() -> int:
    """Record or compare."""
    arguments = _arguments()
    if arguments.verb == "record":
        _record(arguments)
        return 0
    if arguments.verb == "accept":
        for path in _decisions(arguments.directory):
            decisions.accept(path)
        problems.accept(arguments.directory / PROBLEMS)
        return 0
    changes_of = {part: dict(_compare(part, arguments)) for part in arguments.parts}
    if empty := [part for part, cases in changes_of.items() if not cases]:
        raise SystemExit(f"nothing is frozen of {', '.join(empty)} in {arguments.directory}")
    changes: list[Change] = []
    document: dict[str, Any] = {}
    for part, cases in changes_of.items():
        changes += chain.from_iterable(cases.values())
        document[part] = {"compared": len(cases), "equal": sum(not case for case in cases.values())}
    document["causes"] = _by_cause(changes, arguments.expect)
    unexpected = {change.cause for change in changes} - set(arguments.expect)
    if arguments.json:
        text = json.dumps(document, indent=1) + "\n"
        sys.stdout.write(text) if arguments.json == "-" else Path(arguments.json).write_text(text)
    if arguments.json != "-":
        _print(document, arguments.parts)
    return 1 if unexpected else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--directory", type=Path, default=FROZEN, help="default: tests/frozen")
    verbs = parser.add_subparsers(dest="verb", required=True)
    record = verbs.add_parser("record", help="freeze what is decided now")
    record.add_argument("--journal", action="append", default=[], metavar="NAME=FILE")
    record.add_argument("--per-stratum", type=int, default=12, help="decisions of each journal")
    record.add_argument("--per-kind", type=int, default=60, help="problems")
    record.add_argument("--seed", type=int, default=1)
    verbs.add_parser("accept", help="freeze what is decided now on what is frozen")
    compare = verbs.add_parser("compare", help="list what is decided otherwise")
    compare.add_argument("--every", type=int, default=1, help="only each N-th case (default 1)")
    compare.add_argument(
        "--expect",
        nargs="+",
        default=[],
        choices=CAUSES,
        metavar="CAUSE",
        help="what may differ: " + ", ".join(CAUSES),
    )
    compare.add_argument("--json", metavar="FILE", help="write what differs to FILE; - for stdout")
    for verb in (record, compare):
        verb.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    return parser.parse_args()


def _record(arguments: argparse.Namespace) -> None:
    from tests.support.frozen import draws, recorded  # noqa: PLC0415 - need more than a comparison does

    directory: Path = arguments.directory
    if "decisions" in arguments.parts:
        for name, _, path in (argument.partition("=") for argument in arguments.journal):
            target = directory / "decisions" / f"{name}.jsonl.gz"
            recorded.record(name, Path(path), target, arguments.per_stratum, arguments.seed)
    if "problems" in arguments.parts:
        draws.record(directory / PROBLEMS, arguments.per_kind, arguments.seed)
    if "reproduction" in arguments.parts:
        reproduced.record(directory / "reproduction")


def _compare(part: str, arguments: argparse.Namespace) -> Iterator[tuple[str, list[Change]]]:
    """Yield each case's id and what differs."""
    directory: Path = arguments.directory
    if part == "decisions":
        for path in _decisions(directory):
            yield from decisions.compare(path, arguments.every)
    elif part == "problems":
        yield from problems.compare(directory / PROBLEMS, arguments.every)
    else:
        yield from reproduced.compare(directory / "reproduction")


def _decisions(directory: Path) -> list[Path]:
    return sorted((directory / "decisions").glob("*.jsonl.gz"))


def _by_cause(changes: Sequence[Change], expected: Sequence[str]) -> list[Plain]:
    rows: list[Plain] = []
    for cause, meaning in CAUSES.items():
        of_cause = [change for change in changes if change.cause == cause]
        if of_cause:
            rows.append(
                {
                    "cause": cause,
                    "means": meaning,
                    "is_expected": cause in expected,
                    "changes": [{"case": change.case, "what": change.what} for change in of_cause],
                }
            )
    return rows


def _print(document: Plain, parts: Sequence[str]) -> None:
    table = Table(title="Changed, by cause", title_justify="left")
    for heading in ("cause", "cases", "means", "such as"):
        table.add_column(heading, justify="right" if heading == "cases" else "left")
    for row in document["causes"]:
        cases = list(dict.fromkeys(change["case"] for change in row["changes"]))
        examples = [f"{change['case']}: {change['what']}" for change in row["changes"][:SHOWN]]
        colour = "green" if row["is_expected"] else "bold red"
        cause = f"[{colour}]{row['cause']}[/]"
        table.add_row(cause, str(len(cases)), row["means"], escape("\n".join(examples)))
    if document["causes"]:
        console().print(table)
    for part in parts:
        console().print(f"{part}: {document[part]['equal']} of {document[part]['compared']} equal")


if __name__ == "__main__":
    sys.exit(main())
