"""``bftrainer study deadline STUDY.yaml``: whether idle nodes alone are enough in time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import read_journal
from bftrainer.cli.options import FILE, JSON, PATH, SOCKET, argument, option, verb
from bftrainer.cli.output import answer, duration, print_lines, print_table
from bftrainer.ground.regular_file import open_stream
from bftrainer.lab.verbs.trace import READING, READING_NAMES, SELECTION, SELECTION_NAMES, load
from bftrainer.model.columns import counted, shown
from bftrainer.model.errors import UsageError
from bftrainer.study.verbs.plan import SPEED, parse_price, parse_time, scaling_of_study

if TYPE_CHECKING:
    from bftrainer.batch.traces.fragments import Fragments
    from bftrainer.study.deadline import Outlook, ReserveUse

_SQLITE = b"SQLite format 3\0"  # section 1.3 of the file format, SQLite 3.46
NAME = "study-deadline"  # of the document


def parse_deadline(text: str) -> float:
    """Return the seconds of a deadline (BFT-1642: no time, or less than a second)."""
    deadline_s = parse_time(text)
    if deadline_s < 1.0:
        raise UsageError(
            "BFT-1642",
            f"A deadline of {text[:40]} is too short.",
            "Give --deadline at least 1s, as 30m or 6h.",
        )
    return deadline_s


@verb(
    argument("study_path", PATH, metavar="STUDY"),
    option("--deadline TIME", "The whole study is to take no longer: 6h, 1h30m.", parse_deadline,
           name="deadline_s", required=True),
    option("--history FILE", "What was idle: a trace, or the journal.db of a daemon.", FILE,
           name="history_path", required=True),
    option("--now-idle N", "Nodes that are idle now.  [default: as at the end of the history]",
           click.IntRange(0, 1_000_000)),
    option("--confidence SHARE", "What reserved nodes are to make of it.",
           click.FloatRange(0.5, 0.999), 0.95),
    option("--price PRICE/h", "Of one reserved node: 12.24/h.", parse_price, name="price_h"),
    option("--start-up TIME", "From a node's becoming idle until it trains.", parse_time, "25.5s",
           name="start_up_s"),
    *SPEED,
    *SELECTION, *READING, JSON, SOCKET,
    example="bftrainer study deadline study.yaml --deadline 6h --history old.db",
)  # fmt: skip
def deadline(
    study_path: Path, history_path: Path, now_idle: int | None, *, as_json: bool, **options: Any
) -> None:
    """Say how likely STUDY.yaml ends by a deadline on idle nodes alone.

    And how many reserved nodes beside them make that likely enough, and what those cost.
    """
    from bftrainer.study import deadline as model  # noqa: PLC0415 - slow to import
    from bftrainer.study.document import read_study  # noqa: PLC0415

    study = read_study(study_path)
    parts, assumed = model.parts_of(study.rule_with())
    speed = scaling_of_study(study, {**options, "spread": model.SPREAD, "start_s": 0.0})
    parallel = None if study.parallel == "auto" else study.parallel
    trace = _trace(history_path, options)
    history = model.history_for(trace, options["deadline_s"], options["start_up_s"])
    if now_idle is None:
        now_idle = int(history.nodes[-1])
    outlook = model.outlook(
        model.Work(parts=parts, scaling=speed, parallel=parallel),
        history,
        now_idle=now_idle,
        drawing=model.Drawing(seed=study.seed),
        deadline_s=options["deadline_s"],
        start_up_s=options["start_up_s"],
        confidence=options["confidence"],
        price_h=options["price_h"],
    )
    notes = list(outlook.notes)
    if assumed:
        notes.append(assumed)
    notes += (*trace.left_out, *trace.notes)
    answer(replace(outlook, notes=tuple(notes)), NAME, _print, as_json=as_json)


def _trace(path: Path, options: dict[str, Any]) -> Fragments:
    """Return what was idle, from a journal or a trace in any format."""
    is_journal = False
    with contextlib.suppress(OSError), open_stream(path, is_typed=True) as file:  # load says why
        is_journal = file.read(len(_SQLITE)) == _SQLITE
    if not is_journal:
        return load(path, **{name: options[name] for name in (*SELECTION_NAMES, *READING_NAMES)})
    if options["nodes"] != ":" or options["start"] or options["end"]:
        raise click.UsageError("--nodes, --start and --end choose a part of a trace, no journal's.")
    from bftrainer.lab.yesterday import past_of  # noqa: PLC0415 - slow to import

    with read_journal(path) as opened:
        return past_of(opened, options["hours"] or math.inf).trace


def _print(outlook: Outlook) -> None:
    from bftrainer.study.deadline import MOST_NODES  # noqa: PLC0415 - slow to import

    confidence = f"{outlook.confidence:.1%}".replace(".0%", "%")
    if outlook.reserved is not None:
        reserved = f"{outlook.reserved} reserved nodes ({outlook.probability_reserved:.1%})"
    elif outlook.least_s > outlook.deadline_s:
        reserved = "no number of nodes; it takes at least " + duration(outlook.least_s)
    else:
        reserved = f"no number of nodes up to {MOST_NODES:,}"
    history = f"{duration(outlook.history_s)}, {outlook.mean_idle:.1f} nodes on the average"
    rows = [
        ("deadline", duration(outlook.deadline_s)),
        ("history", history),
        ("idle now", counted(outlook.now_idle, "node")),
        ("in time, on idle nodes alone", f"{outlook.probability:.1%}"),
        ("  90% interval of that", f"{outlook.low:.1%} to {outlook.high:.1%}"),
        (f"in time, {confidence}", reserved),
    ]
    if outlook.held and outlook.reserved:
        rows += _held(outlook.held)
    for share, at_s in outlook.finish_s.items():
        end = f"more than {duration(outlook.beyond_s)}"
        if at_s is not None:
            end = duration(at_s)
        rows.append((f"done after, {share}", end))
    print_table(("WHAT", "VALUE"), rows)
    for note in outlook.notes:
        print_lines(f"note: {shown(note)}")


def _held(held: ReserveUse) -> Iterator[tuple[str, str]]:
    """Yield what reserved nodes take; what is beyond the futures is a dash."""

    def both(amounts: Mapping[str, float | None], shown_as: Callable[[float], str]) -> str:
        mean, late = ("-" if value is None else shown_as(value) for value in amounts.values())
        return f"{mean} ({late})"

    node_h = both(held.node_h, "{:.2f}".format)
    yield "  held for, mean (p95)", f"{both(held.time_s, duration)}, {node_h} node-hours"
    if held.cost is not None:
        yield "  cost, mean (p95)", both(held.cost, "{:.2f}".format)
