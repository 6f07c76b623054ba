"""``bftrainer study deadline STUDY.yaml``: whether idle nodes alone are enough in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.api.documents import document
from bftrainer.cli.common import duration, json_option, print_json, print_table, socket_option
from bftrainer.cli.study.amounts import parse_price, parse_time
from bftrainer.cli.trace import load, reading_options, selection_options
from bftrainer.model.columns import shown
from bftrainer.model.errors import UsageError

if TYPE_CHECKING:
    from bftrainer.batch.traces.fragments import Fragments
    from bftrainer.study.deadline.outlook import Outlook, ReserveUse

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


@click.command()
@click.argument("study_path", metavar="STUDY", type=click.Path(path_type=Path))
@click.option("--deadline", "deadline_s", type=parse_deadline, required=True, metavar="TIME",
              help="The whole study is to take no longer: 6h, 1h30m.")  # fmt: skip
@click.option("--history", "history_path", required=True, metavar="FILE",
              type=click.Path(dir_okay=False, path_type=Path),
              help="What was idle: a trace, or the journal.db of a daemon.")  # fmt: skip
@click.option("--now-idle", type=click.IntRange(0, 1_000_000), metavar="N",
              help="Nodes that are idle now.  [default: as at the end of the history]",
              )  # fmt: skip
@click.option("--confidence", type=click.FloatRange(0.5, 0.999), default=0.95, show_default=True,
              metavar="SHARE", help="What reserved nodes are to make of it.")  # fmt: skip
@click.option("--price", "price_h", type=parse_price, metavar="PRICE/h",
              help="Of one reserved node: 12.24/h.")  # fmt: skip
@click.option("--start-up", "start_up_s", type=parse_time, default="25.5s", show_default=True,
              metavar="TIME", help="From a node's becoming idle until it trains.")  # fmt: skip
@click.option("--profile", "profile_path", metavar="FILE",
              help="Throughput by nodes, as bftrainer profile writes it.")  # fmt: skip
@click.option("--trainer", "trainer_id", metavar="ID",
              help="Take the throughput that the daemon measured of this trainer.")  # fmt: skip
@click.option("--epoch-samples", type=click.IntRange(1), metavar="N",
              help="Samples of an epoch, for --profile and --trainer.")  # fmt: skip
@selection_options
@reading_options
@json_option
@socket_option
def deadline(
    study_path: Path,
    history_path: Path,
    now_idle: int | None,
    *,
    as_json: bool,
    **options: Any,
) -> None:
    """Say how likely STUDY.yaml ends by a deadline on idle nodes alone.

    And how many reserved nodes beside them make that likely enough, and what those cost.
    """
    from bftrainer.cli.study.plan_input import scaling_of_study  # noqa: PLC0415 - slow to import
    from bftrainer.study.deadline.futures import Drawing  # noqa: PLC0415
    from bftrainer.study.deadline.outlook import history_for, outlook  # noqa: PLC0415
    from bftrainer.study.deadline.work import SPREAD, Work, parts_of  # noqa: PLC0415
    from bftrainer.study.document import read_study  # noqa: PLC0415

    study = read_study(study_path)
    parts, assumed = parts_of(study.rule_with())
    speed = scaling_of_study(study, {**options, "spread": SPREAD, "start_s": 0.0})
    work = Work(
        parts=parts,
        scaling=speed,
        parallel=None if study.parallel == "auto" else study.parallel,
    )
    trace = _trace(history_path, options)
    history = history_for(trace, options["deadline_s"], options["start_up_s"])
    now = int(history.nodes[-1]) if now_idle is None else now_idle
    found = outlook(
        work,
        history,
        deadline_s=options["deadline_s"],
        start_up_s=options["start_up_s"],
        now_idle=now,
        confidence=options["confidence"],
        drawing=Drawing(seed=study.seed),
        price_h=options["price_h"],
    )
    notes = (assumed, *trace.notes) if assumed else trace.notes
    found = replace(found, notes=(*found.notes, *notes))
    if as_json:
        print_json(document(NAME, found))
    else:
        _print(found)


def _trace(path: Path, options: dict[str, Any]) -> Fragments:
    """Return what was idle, from a journal or a trace in any format."""
    names = ("nodes", "start_s", "hours", "only_unfillable", "format_name", "time_zone", "year")
    if not _is_journal(path):
        return load(path, **{name: options[name] for name in (*names, "ignored")})
    if options["nodes"] != ":" or options["start_s"] is not None:
        raise click.UsageError("--nodes and --start choose a part of a trace, not of a journal.")
    from bftrainer.journal.journal import Journal  # noqa: PLC0415 - SQLAlchemy is slow
    from bftrainer.lab.yesterday.journal import past_of  # noqa: PLC0415

    with Journal.open(path, clock=time.time, is_verified=False) as opened:
        return past_of(opened, options["hours"] or math.inf).trace


def _is_journal(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False  # reading it as a trace says why


def _print(found: Outlook) -> None:
    from bftrainer.study.deadline.work import MOST_NODES  # noqa: PLC0415 - slow to import

    confidence = f"{found.confidence:.1%}".replace(".0%", "%")
    if found.reserved is not None:
        reserved = f"{found.reserved} reserved nodes ({found.probability_reserved:.1%})"
    elif found.least_s > found.deadline_s:
        reserved = "no number of nodes; it takes at least " + duration(found.least_s)
    else:
        reserved = f"no number of nodes up to {MOST_NODES:,}"
    print_table(
        ("WHAT", "VALUE"),
        [
            ("deadline", duration(found.deadline_s)),
            ("history", f"{duration(found.history_s)}, {found.mean_idle:.1f} nodes on the average"),
            ("idle now", f"{found.now_idle} nodes"),
            ("in time, on idle nodes alone", f"{found.probability:.1%}"),
            ("  90% interval of that", f"{found.low:.1%} to {found.high:.1%}"),
            (f"in time, {confidence}", reserved),
            *(_held(found.held) if found.held and found.reserved else ()),
            *(
                (
                    f"done after, {share}",
                    duration(at_s) if at_s is not None else f"more than {duration(found.beyond_s)}",
                )
                for share, at_s in found.finish_s.items()
            ),
        ],
    )
    for note in found.notes:
        click.echo(f"note: {shown(note)}")


def _held(held: ReserveUse) -> Iterator[tuple[str, str]]:
    """Yield what reserved nodes take; what is beyond the futures is a dash."""

    def both(amounts: Mapping[str, float | None], shown_as: Callable[[float], str]) -> str:
        mean, late = ("-" if one is None else shown_as(one) for one in amounts.values())
        return f"{mean} ({late})"

    node_h = both(held.node_h, "{:.2f}".format)
    yield "  held for, mean (p95)", f"{both(held.time_s, duration)}, {node_h} node-hours"
    if held.cost is not None:
        yield "  cost, mean (p95)", both(held.cost, "{:.2f}".format)
