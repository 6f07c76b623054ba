"""``bftrainer trace``: describe, generate and convert traces of idle nodes.

Prints a table or JSON, or writes a picture or another file. Needs no daemon.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from bftrainer.cli.options import JSON, PATH, VerbGroup, argument, option, shown_example, verb
from bftrainer.cli.output import print_json, print_lines, print_table
from bftrainer.model.columns import shown
from bftrainer.model.quantities import quantity, time_span

if TYPE_CHECKING:
    from bftrainer.batch.traces.fragments import Fragments
    from bftrainer.batch.traces.statistics import TraceStatistics
    from bftrainer.lab.workloads import TrainerWorkload

PATIENCE_S = 2.0  # nobody wants a progress bar for less
HOUR_S = 3600.0
GPUS_LOST = "idle GPUs are kept in .npz files only"
DATE_LENGTH = len("2024-05-01")
_NODES = re.compile(r"(\d{0,9}):(\d{0,9})")


READING = [
    option("--format NAME", "npz, csv, parquet, swf, sacct, lsb.acct or bhist.", default="auto",
           name="format_name"),
    option("--time-zone NAME", "Of local times (sacct, bhist), and of --start and --end.  "
           "[default: UTC]"),
    option("--year", "Of times without one (bhist).", click.IntRange(1990, 2100)),
    option("--ignore NAME", "Partition or queue whose jobs count as idle time, such as that of "
           "pilots.", name="ignored", multiple=True),
    option("--closed FILE", "Output of sacctmgr show event: nodes that were down or drained then "
           "were not idle (sacct).", PATH),
    option("--sinfo FILE", "Output of sinfo: all nodes, with their partitions and GPUs (sacct).",
           PATH),
]  # fmt: skip
SELECTION = [
    option("--nodes A:B", "Nodes A to B-1, from 0.", default=":", show_default=False),
    option(
        "--start TIME",
        "From then on: seconds of the epoch, or a date as 2024-05-01T10:00.",
        name="start",
    ),
    option(
        "--end TIME",
        "Until then. Of a log of jobs, --start and --end name the time for which "
        "it lists all jobs.",
        name="end",
    ),
    option("--hours", "How long, instead of --end.", click.FloatRange(min=0, min_open=True)),
    option("--unfillable", "Only what no job could use.", name="only_unfillable"),
]
# The parameters of these options, which ``load`` takes.
SELECTION_NAMES = ("nodes", "start", "end", "hours", "only_unfillable")
READING_NAMES = ("format_name", "time_zone", "year", "ignored", "closed", "sinfo")
_SPREAD = ("least", "p5", "p50", "mean", "p95", "most")  # of statistics, as they are listed


@click.group(name="trace", cls=VerbGroup, epilog=shown_example("bftrainer trace info idle.npz"))
def trace() -> None:
    """Describe, make and convert traces of idle nodes.

    A trace says which nodes were idle, from when until when.
    """


@verb(
    argument("file", PATH),
    *SELECTION, *READING,
    option("--plot", "Draw Figs. 1 and 6 as PNG.", PATH),
    JSON, group=trace, name="info",
    example="bftrainer trace info jobs.txt --format sacct --plot idle.png",
)  # fmt: skip
def info(file: Path, plot: Path | None, *, as_json: bool, **options: Any) -> None:
    """Say how much is idle in FILE, for how long, and how often that changes."""
    from bftrainer.batch.traces.statistics import as_document, bars, fragment_cdf, statistics  # noqa: PLC0415 - numpy takes 0.1 s

    fragments = load(file, **options)
    if plot is not None:
        from bftrainer.lab.trace_plot import draw  # noqa: PLC0415

        draw(fragments, file.name, plot)
    if as_json:
        print_json(as_document(fragments, str(file)))
        return
    print_table(("WHAT", "VALUE"), _rows(statistics(fragments)))
    print_lines("")
    lengths = list[tuple[str, str, str]]()
    for row in fragment_cdf(fragments):
        longest = time_span(60.0 * row["minutes"])
        lengths.append((longest, f"{row['by_count']:.1%}", f"{row['by_node_time']:.1%}"))
    print_table((">FRAGMENTS UP TO", ">OF FRAGMENTS", ">OF NODE-TIME"), lengths)
    print_lines("")
    hours = list[tuple[str, str, str]]()
    for bar in bars(fragments):
        span = f"{quantity(bar['from_hour'], 4)}-{quantity(bar['to_hour'], 4)}"
        hours.append((span, str(bar["events"]), f"{bar['idle_share']:.1%}"))
    print_table((">HOURS", ">EVENTS", ">IDLE"), hours)
    _print_gpus(fragments)
    print_remarks(fragments.warnings, (*fragments.left_out, *fragments.notes))


@verb(
    option("--out", "File to write.", PATH, required=True),
    option("--nodes", "How many nodes it is of.", click.IntRange(1), 256, name="n_nodes"),
    option("--hours", "How long it is.", click.FloatRange(min=0, min_open=True), 48.0),
    option("--seed", "The same seed gives the same trace.", click.IntRange(0), 1),
    option("--start", "First second of the trace.", float, 0.0, show_default=True, name="start_s"),
    option("--machine-nodes", "Machine the nodes are part of [default: 4734, Summit's, or --nodes]",
           click.IntRange(1)),
    option("--set NAME=VALUE", "Another parameter of the generator; see docs/reference/traces.md.",
           name="assignments", multiple=True),
    group=trace, name="generate",
    example="bftrainer trace generate --nodes 64 --hours 24 --out idle.npz",
)  # fmt: skip
def generate(out: Path, assignments: tuple[str, ...], **options: Any) -> None:
    """Make a synthetic trace, like Summit's in February 2021 unless told otherwise."""
    from bftrainer.batch.traces import generator, write_trace  # noqa: PLC0415 - numpy

    values = {name: value for name, value in options.items() if value is not None}
    values.update(_assigned(assignments, generator.GeneratorParameters()))
    with LateProgress("making the trace") as progress:
        fragments = generator.generate(generator.GeneratorParameters(**values), progress.report)
        write_trace(out, fragments)
    print_lines(f"{out}: {_size_of(fragments)}")


@verb(
    argument("file", PATH),
    argument("out", PATH),
    *SELECTION,
    *READING,
    group=trace,
    name="convert",
    example="bftrainer trace convert jobs.txt idle.npz --format sacct",
)
def convert(file: Path, out: Path, **options: Any) -> None:
    """Read FILE in any format and write the fragments to OUT (.npz, .csv, .csv.gz, .parquet)."""
    from bftrainer.batch.traces import write_trace  # noqa: PLC0415 - numpy takes 0.1 s

    fragments = load(file, **options)
    write_trace(out, fragments)
    print_lines(f"{out}: {_size_of(fragments)}")
    notes = [*fragments.left_out, *fragments.notes]
    if fragments.gpus is not None and out.suffix != ".npz":
        notes.append(GPUS_LOST)
    print_remarks(fragments.warnings, notes)


def _size_of(trace: Fragments) -> str:
    """Return how many fragments of how many nodes a trace has, and in how many rows."""
    from bftrainer.batch.traces.statistics import fragment_lengths_s  # noqa: PLC0415 - numpy

    count = len(fragment_lengths_s(trace))
    size = f"{count:,} fragments of {len(trace.names):,} nodes"
    if count == len(trace):
        return size
    return f"{size} in {len(trace):,} rows"


def _print_gpus(trace: Fragments) -> None:
    """Print the idle GPUs, where the GPUs of the nodes are known."""
    from bftrainer.batch.traces.gpu_pools import (  # noqa: PLC0415 - numpy takes 0.1 s
        HEADERS,
        gpu_rows,
        gpu_sentences,
        idle_gpus,
    )

    gpus = idle_gpus(trace)
    if gpus is None:
        return
    print_lines("", *gpu_sentences(gpus))
    if gpus.pools:
        print_lines("")
        print_table(HEADERS, gpu_rows(gpus))


def print_remarks(warnings: Iterable[str], notes: Iterable[str]) -> None:
    """Print what a trace's figures assume, and first what makes them doubtful."""
    for warning in warnings:
        print_lines(f"warning: {shown(warning)}")
    for note in notes:
        print_lines(f"note: {shown(note)}")


def load(
    file: Path,
    *,
    nodes: str = ":",
    start: str | None = None,
    end: str | None = None,
    hours: float | None = None,
    only_unfillable: bool = False,
    format_name: str = "auto",
    time_zone: str | None = None,
    year: int | None = None,
    ignored: tuple[str, ...] = (),
    closed: Path | None = None,
    sinfo: Path | None = None,
) -> Fragments:
    """Read the part of a trace that the options choose, with a progress bar if it takes long."""
    from bftrainer.batch.traces import ReadOptions, read_trace  # noqa: PLC0415

    node_range = _nodes(nodes)
    start_s, end_s = instant(start, time_zone, "--start"), instant(end, time_zone, "--end")
    if end_s is not None and hours is not None:
        raise click.UsageError("Give --end or --hours, not both.")
    if start_s is not None and hours is not None:
        end_s = start_s + hours * HOUR_S
    options = ReadOptions(
        time_zone=time_zone,
        year=year,
        ignored=tuple(ignored),
        start_s=start_s,
        end_s=end_s,
        closed=closed,
        sinfo=sinfo,
    )
    with LateProgress(f"reading {file.name}") as progress:
        whole = read_trace(file, format_name, options=options, progress=progress.report)
    if end_s is not None:
        begin_s, _ = whole.span_s
        if start_s is not None:
            begin_s = start_s
        hours = (end_s - begin_s) / HOUR_S
    part = whole.restrict(node_range, start_s=start_s, hours=hours)
    if only_unfillable:
        return part.unfillable()
    return part


def instant(text: str | None, zone: str | None, name: str) -> float | None:
    """Return the seconds of a point in time that a user types; None: it is not given."""
    from bftrainer.batch.traces.text import iso_seconds, time_zone  # noqa: PLC0415

    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    date = text if len(text) > DATE_LENGTH else f"{text}T00:00"
    try:
        return iso_seconds(date, time_zone(zone))
    except ValueError:
        why = f"{text!r} is neither seconds of the epoch nor a date such as 2024-05-01T10:00."
        raise click.BadParameter(why, param_hint=name) from None


def workload_of(name: str, seed: int = 1) -> TrainerWorkload:
    """Return the workload in a JSON file, or of a name."""
    from bftrainer.lab.workloads import by_name, read_workload  # noqa: PLC0415 - numpy

    path = Path(name)
    if path.is_file():
        return read_workload(path)
    return by_name(name, seed=seed)


class LateProgress:
    """A progress bar on standard error that appears only for long operations."""

    def __init__(self, activity: str) -> None:
        self._activity = activity
        self._started_s = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, share: float) -> None:
        """Show that ``share`` (0 to 1) is done."""
        if self._bar is None and time.monotonic() - self._started_s > PATIENCE_S:
            from rich.console import Console  # noqa: PLC0415 - only who waits pays for it
            from rich.progress import Progress  # noqa: PLC0415

            self._bar = Progress(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._activity, total=1.0)
            self._bar.start()
        if self._bar is not None:
            self._bar.update(self._task, completed=min(max(share, 0.0), 1.0))


def _nodes(text: str) -> slice:
    match = _NODES.fullmatch(text)
    if match is None:
        raise click.BadParameter(f"{text!r} is not A:B, such as 0:1024.", param_hint="--nodes")
    first, stop = match.groups()
    return slice(int(first) if first else None, int(stop) if stop else None)


def _assigned(assignments: tuple[str, ...], defaults: object) -> dict[str, float]:
    values: dict[str, float] = {}
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if not isinstance(getattr(defaults, name, None), float):
            raise click.BadParameter(f"there is no parameter {name!r}.", param_hint="--set")
        try:
            values[name] = float(text)
        except ValueError:
            raise click.BadParameter(f"{text!r} is not a number.", param_hint="--set") from None
    return values


def _rows(numbers: TraceStatistics) -> list[tuple[str, str]]:
    def spread(values: dict[str, float], shown_as: Callable[[float], str]) -> str:
        texts = [f"{name} {shown_as(values[name])}" for name in _SPREAD if name in values]
        return ", ".join(texts) or "-"

    unfillable = "not known"
    if numbers.unfillable_share is not None:
        unfillable = f"{numbers.unfillable_share:.2%}"
    fragments = f"{numbers.fragments:,}"
    if numbers.parts > numbers.fragments:
        fragments += f" (in {numbers.parts:,} parts, fillable or unfillable)"
    return [
        ("nodes", f"{numbers.n_nodes:,}"),
        ("observed", time_span(numbers.hours * HOUR_S)),
        ("idle", f"{quantity(numbers.node_hours)} node-hours"),
        ("equivalent nodes (N_eq)", quantity(numbers.eq_nodes)),
        ("idle share", f"{numbers.idle_share:.2%}"),
        ("accounted for", numbers.node_time.sentence()),
        ("of it unfillable", unfillable),
        ("fragments", fragments),
        ("fragments under 10 min", f"{numbers.short_share:.1%}"),
        ("node-time in them", f"{numbers.short_time_share:.1%}"),
        ("events", f"{numbers.events:,}"),
        ("events per hour", quantity(numbers.events_per_hour)),
        ("nodes join, per hour", quantity(numbers.joins_per_hour)),
        ("nodes leave, per hour", quantity(numbers.leaves_per_hour)),
        ("pool grows, per hour (INC/h)", quantity(numbers.increases_per_hour)),
        ("pool shrinks, per hour (DEC/h)", quantity(numbers.decreases_per_hour)),
        ("fragment length", spread(numbers.length_s, time_span)),
        ("time between events", spread(numbers.event_gap_s, time_span)),
        ("pool size at one moment", spread(numbers.pool_nodes, quantity)),
    ]
