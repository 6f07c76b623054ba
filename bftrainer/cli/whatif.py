"""``bftrainer whatif``: predict what a site would harvest, from its own accounting.

Reads an accounting export or a trace and prints text, JSON or HTML. Needs no daemon.
``bftrainer.lab.whatif`` does the work.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftrainer.cli.common import json_option, print_json, print_table
from bftrainer.cli.trace import LateProgress, load, reading_options
from bftrainer.model.columns import shown

if TYPE_CHECKING:
    from bftrainer.lab.whatif import Assumptions, BusinessCase

PILOT_PARTITION = "bf"  # where the Slurm adapter submits pilots unless told otherwise


@click.command()
@click.option("--sacct", "sacct_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Output of sacct --parsable2; see docs/reference/traces.md.")  # fmt: skip
@click.option("--swf", "swf_file", type=click.Path(path_type=Path), metavar="FILE",
              help="A log in the Standard Workload Format.")  # fmt: skip
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), metavar="FILE",
              help="A trace in any other format of 'bftrainer trace'.")  # fmt: skip
@click.option("--nodes", "n_nodes", type=click.IntRange(1), metavar="N",
              help="Nodes of the machine, if the file does not name all.")  # fmt: skip
@click.option("--start", "start_s", type=float, help="From this second on.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), help="How long.")
@click.option("--unfillable", "only_unfillable", is_flag=True,
              help="Only what no pending job could have used.")  # fmt: skip
@reading_options
@click.option("--policy", "policies", multiple=True, default=("milp",), show_default=True,
              help="Decision rule; several are compared at the settings of the first.")  # fmt: skip
@click.option("--t-fwd", "t_fwd_s", type=click.FloatRange(1), multiple=True, metavar="S",
              help="Forward-looking time(s) to try.")  # fmt: skip
@click.option("--p-jmax", type=click.IntRange(1, 1000), multiple=True, metavar="N",
              help="Number(s) of trainers at once to try.")  # fmt: skip
@click.option("--hold-down", "hold_down_s", type=click.FloatRange(0), multiple=True, metavar="S",
              help="Hold-down time(s) to try.")  # fmt: skip
@click.option("--poll-interval", "poll_interval_s", type=click.FloatRange(0.05), default=1.0,
              show_default=True, help="Time between two polls of the batch system.")  # fmt: skip
@click.option("--network", default="shufflenet", show_default=True,
              help="What the trainers train: a network of Table 2.")  # fmt: skip
@click.option("--trainer-nodes", default="1:64", show_default=True, metavar="MIN:MAX",
              help="Sizes a trainer may have.")  # fmt: skip
@click.option("--costs", "costs_file", type=click.Path(path_type=Path), metavar="FILE",
              help="Durations, such as bench_rescale.py --json writes.")  # fmt: skip
@click.option("--cost", "given", multiple=True, metavar="NAME=SECONDS",
              help="One duration, such as claim=5.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@click.option("--processes", type=click.IntRange(1, 256), default=os.cpu_count() or 1,
              show_default="number of cores", help="Replays at a time.")  # fmt: skip
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE.html",
              help="Also write the page.")  # fmt: skip
@json_option
def whatif(
    sacct_file: Path | None,
    swf_file: Path | None,
    trace_file: Path | None,
    report: Path | None,
    *,
    processes: int,
    as_json: bool,
    **options: Any,
) -> None:
    """Say what a machine's idle time is worth, and with which settings."""
    from bftrainer.lab.whatif import as_document, study  # noqa: PLC0415 - numpy takes 0.1 s

    chosen = [f for f in (sacct_file, swf_file, trace_file) if f is not None]
    if len(chosen) != 1:
        raise click.UsageError("Give exactly one of --sacct, --swf and --trace.")
    file = chosen[0]
    options["format_name"] = (
        "sacct" if sacct_file else "swf" if swf_file else options["format_name"]
    )
    options["ignored"] = options["ignored"] or (PILOT_PARTITION,)
    reading = ("start_s", "hours", "only_unfillable", "format_name", "time_zone", "year", "ignored")
    trace = load(file, **{name: options.pop(name) for name in reading})
    with LateProgress("replaying") as progress:
        found = study(trace, _assumptions(**options), progress.report, processes=processes)
    if report is not None:
        _write(report, found, file.name)
    if as_json:
        print_json(as_document(found, str(file)))
    else:
        _print(found)


def _assumptions(
    *,
    network: str,
    trainer_nodes: str,
    costs_file: Path | None,
    given: tuple[str, ...],
    **plain: Any,
) -> Assumptions:
    """Make the assumptions; what was not given keeps its default."""
    from bftrainer.lab.simulator.costs import chosen_costs  # noqa: PLC0415
    from bftrainer.lab.whatif import Assumptions  # noqa: PLC0415
    from bftrainer.lab.workloads import NETWORKS  # noqa: PLC0415

    if network.lower() not in NETWORKS:
        raise click.BadParameter(f"choose from {', '.join(NETWORKS)}.", param_hint="--network")
    n_min, n_max = _sizes(trainer_nodes)
    chosen: dict[str, Any] = {name: v for name, v in plain.items() if v not in (None, ())}
    for name in chosen.keys() & {"t_fwd_s", "p_jmax", "hold_down_s"}:
        chosen[name] = tuple(sorted(set(chosen[name])))
    return Assumptions(
        network=NETWORKS[network.lower()],
        n_min=n_min,
        n_max=n_max,
        costs=chosen_costs(costs_file, given),
        **chosen,
    )


def _sizes(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    high = high if colon else low
    is_range = low.isdecimal() and high.isdecimal() and len(low + high) < 12
    if not is_range or not 1 <= int(low) <= int(high) <= 1_000_000:
        raise click.BadParameter(f"{text!r} is not MIN:MAX.", param_hint="--trainer-nodes")
    return int(low), int(high)


def _write(path: Path, found: BusinessCase, source: str) -> None:
    from bftrainer.batch.traces.text import unreadable  # noqa: PLC0415
    from bftrainer.lab.whatif.document import page  # noqa: PLC0415

    command = shlex.join(["bftrainer", *sys.argv[1:]])
    try:
        path.write_text(page(found, source, command), encoding="utf-8")
    except OSError as problem:
        raise unreadable(path, problem) from problem


def _print(found: BusinessCase) -> None:
    from bftrainer.lab.whatif import document  # noqa: PLC0415

    print_table(("IDLE TIME", ""), document.idle_rows(found))
    click.echo()
    print_table(("SETTING", ">RECOMMENDED", "WHY"), document.advice_rows(found))
    for sweep in found.sweeps:
        if len(sweep.points) > 1:
            click.echo(document.swept_sentence(sweep))
    click.echo()
    print_table(
        ("POLICY", ">U", ">NODE-HOURS PER DAY", ">OF THE IDLE TIME"),
        document.expected_rows(found),
    )
    click.echo()
    print_table(("ONE SECOND MORE", ">COSTS", ">THAT IS"), document.second_rows(found))
    click.echo()
    for line in found.assumptions.sentences():
        click.echo(f"assumed: {line}")
    for line in (document.replayed_sentence(found), *document.above_one(found)):
        click.echo(line)
    for note in found.notes:
        click.echo(f"note: {shown(note)}")
